"""What to run, in words that every backend understands."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LaunchPlan:
    """One attempt: `nodes` agents. `secrets` reach the processes' environment and are shown nowhere.

    `backend_name` is a pure function of the attempt id, so that whoever submits again finds what is there.
    """

    attempt_id: str
    backend_name: str
    nodes: int
    processes_per_node: int
    accelerator: str
    time_limit_seconds: int
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)


def backend_name(attempt_id: str) -> str:
    """`att_01J...` -> `athanor-01j...`: valid as a folder, a Slurm job name and a Kubernetes name."""
    return "athanor-" + attempt_id.removeprefix("att_").lower()
