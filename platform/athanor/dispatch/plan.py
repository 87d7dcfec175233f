"""From the record of an attempt to what is launched, and to what its trainer is told. Pure."""

from datetime import datetime, timedelta

from athanor.backends.plan import LaunchPlan, backend_name
from athanor.specs.v1 import JobSpec
from trainer.contract import environment as names
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.run import BaseModelSource, DatasetSource, RunConfig
from trainer.contract.training import ProcessLayout


def launch_plan(spec: JobSpec, *, attempt_id: str, agent_url: str, token: str) -> LaunchPlan:
    return LaunchPlan(
        attempt_id=attempt_id,
        backend_name=backend_name(attempt_id),
        nodes=spec.resources.nodes,
        processes_per_node=spec.resources.processes_per_node,
        accelerator=spec.resources.accelerator,
        time_limit_seconds=spec.time_limit_seconds,
        environment={names.AGENT_URL: agent_url},
        secrets={names.ATTEMPT_TOKEN: token},
    )


def run_config(
    spec: JobSpec,
    *,
    job_id: str,
    attempt_id: str,
    attempt_number: int,
    prefix: str,
    datasets: list[DatasetSource],
    base: BaseModelSource | None,
    resume: CheckpointManifest | None,
    launched_at: datetime,
) -> RunConfig:
    return RunConfig(
        job_id=job_id,
        attempt_id=attempt_id,
        attempt_number=attempt_number,
        prefix=prefix,
        layout=ProcessLayout(nodes=spec.resources.nodes, processes_per_node=spec.resources.processes_per_node),
        training=spec.training,
        prepare=spec.prepare,
        checkpoint=spec.checkpoint,
        dataset=datasets[0],
        more_datasets=datasets[1:],
        base=base,
        resume=resume,
        max_restarts_in_place=spec.retry.restarts_in_place,
        telemetry=spec.telemetry.named(spec.name),
        deadline=launched_at + timedelta(seconds=spec.time_limit_seconds),
    )
