"""Build the launch plan and the trainer's configuration of an attempt. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from athanor.backends.plan import LaunchPlan, backend_name
from athanor.specs.v1 import JobSpec
from trainer.contract import environment as names
from trainer.contract.export import CheckpointExport
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.replay import Replay
from trainer.contract.rollback import Rollback
from trainer.contract.run import BaseModelSource, DatasetSource, RunConfig
from trainer.contract.training import ProcessLayout


@dataclass(frozen=True)
class Owner:
    """Whose attempt it is, and where it was admitted; names as people gave them."""

    job_id: str
    team: str
    project: str
    pool: str
    memory_bytes_per_slot: int


def launch_plan(
    spec: JobSpec, *, attempt_id: str, owner: Owner, avoid_nodes: tuple[str, ...], agent_url: str, token: str
) -> LaunchPlan:
    """Return what a backend starts for an attempt."""
    asked = spec.resources
    return LaunchPlan(
        attempt_id=attempt_id,
        backend_name=backend_name(attempt_id),
        nodes=asked.nodes,
        processes_per_node=asked.processes_per_node,
        accelerator=asked.accelerator,
        time_limit_seconds=spec.time_limit_seconds,
        environment={names.AGENT_URL: agent_url},
        secrets={names.ATTEMPT_TOKEN: token},
        job_id=owner.job_id,
        job_name=spec.name,
        team=owner.team,
        project=owner.project,
        pool=owner.pool,
        priority=spec.priority,
        spare_nodes=asked.spare_nodes,
        min_nodes=asked.min_nodes,
        cpus_per_process=asked.cpus_per_process,
        memory_bytes_per_node=asked.memory_bytes_per_node,
        memory_share_bytes=owner.memory_bytes_per_slot * asked.processes_per_node,
        exclusive=asked.exclusive,
        max_switches=asked.max_switches,
        avoid_nodes=avoid_nodes,
    )


def run_config(
    spec: JobSpec,
    *,
    job_id: str,
    attempt_id: str,
    attempt_number: int,
    prefix: str,
    datasets: list[DatasetSource],
    compared: list[DatasetSource],
    base: BaseModelSource | None,
    resume: CheckpointManifest | None,
    best: CheckpointManifest | None,
    rollbacks: list[Rollback],
    replay: Replay | None,
    export: CheckpointExport | None,
    slot_hours_between_failures: float,
    launched_at: datetime,
    outbound_allow: str,
    cache_scope: str,
) -> RunConfig:
    """Return the configuration that the agents of an attempt fetch."""
    return RunConfig(
        job_id=job_id,
        attempt_id=attempt_id,
        attempt_number=attempt_number,
        prefix=prefix,
        layout=ProcessLayout(nodes=spec.resources.nodes, processes_per_node=spec.resources.processes_per_node),
        training=spec.training,
        prepare=spec.prepare,
        evaluation=spec.evaluation,
        replay=replay,
        export=export,
        checkpoint=spec.checkpoint,
        dataset=datasets[0],
        more_datasets=datasets[1:],
        compared=compared,
        base=base,
        resume=resume,
        best=best,
        rollbacks=rollbacks,
        max_restarts_in_place=spec.retry.restarts_in_place,
        hang_seconds=spec.retry.hang_seconds,
        preflight=spec.preflight,
        spare_nodes=spec.resources.spare_nodes,
        min_nodes=spec.resources.min_nodes,
        slot_hours_between_failures=slot_hours_between_failures,
        telemetry=spec.telemetry.named(spec.name),
        outbound_allow=outbound_allow,
        cache_scope=cache_scope,
        deadline=launched_at + timedelta(seconds=spec.time_limit_seconds),
    )
