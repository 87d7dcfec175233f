"""What to run, in words that every backend understands."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LaunchPlan:
    """One attempt: `nodes` agents, and `spare_nodes` that wait to take the place of one. `secrets` reach the
    processes' environment and are shown nowhere.

    `backend_name` is a pure function of the attempt id, so that a repeated submission finds the existing object.
    `team`, `project` and `pool` are names, which a backend's configuration maps to accounts, namespaces, partitions;
    `job_name` is whatever its user wrote. What is None is left to the backend.
    """

    attempt_id: str
    backend_name: str
    nodes: int
    processes_per_node: int
    accelerator: str
    time_limit_seconds: int
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    job_id: str = ""
    job_name: str = ""
    team: str = ""
    project: str = ""
    pool: str = ""
    priority: str = "normal"  # low, normal, high
    spare_nodes: int = 0
    cpus_per_process: int | None = None
    memory_bytes_per_node: int | None = None
    exclusive: bool = False
    max_switches: int | None = None
    avoid_nodes: tuple[str, ...] = ()


def backend_name(attempt_id: str) -> str:
    """`att_01J...` -> `athanor-01j...`: valid as a folder, a Slurm job name and a Kubernetes name."""
    return "athanor-" + attempt_id.removeprefix("att_").lower()
