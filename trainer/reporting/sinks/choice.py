"""Create the metric sinks of a run (TensorBoard, MLflow), one queue each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer.contract.addresses import Allowed
from trainer.contract.run import DataKeys, RunConfig
from trainer.contract.telemetry import MLFLOW_SECRETS
from trainer.reporting.sinks.event_files import EventFiles
from trainer.reporting.sinks.mlflow_run import MlflowRun
from trainer.reporting.sinks.sink_queue import ReportEvent, Sink, SinkQueue


@dataclass(frozen=True)
class StandaloneSinkConfig:
    """Settings for sinks of a standalone run: the folder of TensorBoard files, and MLflow's environment variables."""

    tensorboard: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def start_sinks(
    run: RunConfig, keys: DataKeys, run_key: str, local: StandaloneSinkConfig, report_event: ReportEvent
) -> list[SinkQueue]:
    """Start the sinks of a training run, one queue each. Empty for a job that only prepares data.

    Called only where metrics are shipped: by the agent of node 0, or by rank 0 under torchrun. `run_key` is the job id
    or the output folder, the same in all attempts.
    """
    if run.training is None:
        return []
    sinks: list[Sink] = []
    if local.tensorboard is not None:
        sinks.append(EventFiles(local.tensorboard))
    if run.telemetry.mlflow is not None:
        secrets = {
            name.upper().replace("-", "_"): keys.secrets[name] for name in MLFLOW_SECRETS if name in keys.secrets
        }
        allowed = None if run.outbound_allow is None else Allowed(run.outbound_allow)
        sinks.append(MlflowRun(run.telemetry.mlflow, run_key, run.training, {**local.environment, **secrets}, allowed))
    return [SinkQueue(sink, report_event) for sink in sinks]
