"""Facts that a backend reports: the findings of its health check, and its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # jobs run, with less than there could be
    ERROR = "error"  # jobs cannot run


@dataclass(frozen=True)
class Finding:
    """The result of one check. `remedy` says what to do about a warning or an error."""

    check: str
    level: Level
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class HealthCheck:
    """The findings of a health check, and the version of the cluster's software.

    `facts` are JSON values that the backend's own code depends on, such as accounting or the version of an API.
    """

    version: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_usable(self) -> bool:
        """Return whether no finding is an error."""
        return all(finding.level is not Level.ERROR for finding in self.findings)


class NodeState(StrEnum):
    """Whether a node takes new work."""

    READY = "ready"
    DRAINED = "drained"  # takes no new work, by somebody's will
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NodeFacts:
    """A node. Slots are accelerators, or processor cores if it has none; `slots_used` counts all users.

    `pools`: names by which the backend groups nodes (partitions, node pools). `topology`: the switches above the node,
    from the outermost; nodes with the longest common prefix are nearest to each other. `memory_bytes` is host memory,
    `accelerator_memory_bytes` that of one accelerator; 0 is unknown.
    """

    name: str
    state: NodeState
    reason: str = ""
    pools: tuple[str, ...] = ()
    accelerator: str = "cpu"
    slots: int = 0
    slots_used: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    accelerator_memory_bytes: int = 0
    topology: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
