"""Record a training run in an MLflow experiment, by MLflow's client."""

import os
from collections.abc import Mapping
from typing import Any

from trainer.contract.addresses import Allowed, check
from trainer.contract.run import EndClass, MetricPoint
from trainer.contract.telemetry import MlflowSpec
from trainer.contract.training import TrainingSpec

TAG = "athanor.run"
MAX_METRICS_PER_REQUEST = 1000  # limits of MLflow's API
MAX_PARAMS_PER_REQUEST = 100
MAX_PARAM_CHARACTERS = 500
# An unreachable server must not block a thread for MLflow's default of minutes. Telemetry of the client is disabled.
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
STATUS = {EndClass.COMPLETED: "FINISHED", EndClass.STOPPED: "KILLED"}


class MlflowRun:
    """A run in MLflow. `run_key`: finds the run that an earlier attempt began. `environment`: MLflow's variables,
    including credentials, set in this process. `allowed`: the non-public addresses that may be reached; None: all."""

    name = "mlflow"

    def __init__(
        self,
        spec: MlflowSpec,
        run_key: str,
        training: TrainingSpec,
        environment: Mapping[str, str],
        allowed: Allowed | None,
    ) -> None:
        self._spec, self._run_key, self._training, self._environment = spec, run_key, training, environment
        self._allowed = allowed
        self._client: Any = None
        self._run_id = ""

    def open(self) -> None:
        """Find or create the experiment and the run."""
        os.environ.update({**DEFAULTS, **self._environment})
        from mlflow import MlflowClient  # noqa: PLC0415 - an extra, and slow to import

        if self._allowed is not None:
            from trainer.reporting.sinks.guarded import guard_connections  # noqa: PLC0415 - urllib3 comes with the extra

            check(self._spec.tracking_uri, self._allowed)
            guard_connections(self._allowed)
            os.environ["MLFLOW_ALLOW_HTTP_REDIRECTS"] = "false"  # credentials are for the checked address
        client = MlflowClient(tracking_uri=self._spec.tracking_uri)
        experiment = client.get_experiment_by_name(self._spec.experiment)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._spec.experiment)
        quoted = self._run_key.replace("'", "''")
        found = client.search_runs([experiment_id], filter_string=f"tags.`{TAG}` = '{quoted}'")
        if found:
            self._run_id = found[0].info.run_id
            client.update_run(self._run_id, status="RUNNING")
        else:
            run = client.create_run(experiment_id, tags={TAG: self._run_key}, run_name=self._spec.run_name)
            self._run_id = run.info.run_id
            self._log_params(client)
        self._client = client

    def write(self, points: list[MetricPoint]) -> None:
        """Send points."""
        from mlflow.entities import Metric  # noqa: PLC0415 - an extra

        metrics = [
            Metric(name, value, int(point.time.timestamp() * 1000), point.step)
            for point in points
            for name, value in point.values.items()
            if value is not None
        ]
        for start in range(0, len(metrics), MAX_METRICS_PER_REQUEST):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + MAX_METRICS_PER_REQUEST])

    def close(self, end_class: EndClass) -> None:
        """Set the run's final status."""
        self._client.set_terminated(self._run_id, status=STATUS.get(end_class, "FAILED"))

    def _log_params(self, client: Any) -> None:
        from mlflow.entities import Param  # noqa: PLC0415 - an extra

        flat = _flat(self._training.model_dump(mode="json", exclude_none=True))
        params = [Param(name, str(value)[:MAX_PARAM_CHARACTERS]) for name, value in flat.items()]
        for start in range(0, len(params), MAX_PARAMS_PER_REQUEST):
            client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS_PER_REQUEST])


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted names, such as `optimizer.learning_rate`."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found
