"""The launch plan: what to run, in terms that every backend understands."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class LaunchPlan:
    """One attempt: `nodes` agents, and `spare_nodes` that wait to replace one. It continues on `min_nodes` at least.

    `secrets` are passed in the processes' environment and shown nowhere. `backend_name` is a pure function of the
    attempt id, so that a repeated submission finds the existing object. `team`, `project` and `pool` are names, which a
    backend's configuration maps to accounts, namespaces, partitions; `job_name` is free text of the user. None leaves
    the choice to the backend. `memory_share_bytes`: the processes' share of a node's memory, by the record of the pool;
    it applies where neither the job nor the cluster's configuration has a size. `only_node`: the node to run on, as in
    the cluster's inventory; empty for any.
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
    priority: Literal["low", "normal", "high"] = "normal"
    spare_nodes: int = 0
    min_nodes: int | None = None
    cpus_per_process: int | None = None
    memory_bytes_per_node: int | None = None
    memory_share_bytes: int | None = None
    exclusive: bool = False
    max_switches: int | None = None
    avoid_nodes: tuple[str, ...] = ()
    only_node: str = ""

    @property
    def fewest_nodes(self) -> int:
        """Return the number of nodes without which the attempt ends."""
        return self.min_nodes or self.nodes

    @property
    def expendable_nodes(self) -> int:
        """Return the number of nodes that the attempt can lose and continue."""
        return self.nodes + self.spare_nodes - self.fewest_nodes


def backend_name(public_id: str) -> str:
    """Return `athanor-01j...` for `att_01J...`: valid as a folder, a Slurm job name and a Kubernetes name."""
    return "athanor-" + public_id.rpartition("_")[2].lower()
