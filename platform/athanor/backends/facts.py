"""Facts that a backend reports: findings of its health check, its nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # jobs run, with less than there could be
    ERROR = "error"  # jobs cannot run


@dataclass(frozen=True)
class Finding:
    """One thing that was examined. `remedy` says what to do about a warning or an error."""

    check: str
    level: Level
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class HealthCheck:
    """`facts` are what the adapter chooses its ways by, e.g. accounting or the version of an API; JSON values."""

    version: str
    findings: tuple[Finding, ...]
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_usable(self) -> bool:
        return all(finding.level is not Level.ERROR for finding in self.findings)


class NodeState(StrEnum):
    READY = "ready"
    DRAINED = "drained"  # takes no new work, by somebody's will
    DOWN = "down"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NodeFacts:
    """A node. Slots are accelerators, or processor cores where it has none; `slots_used` is by whomever.

    `pools`: names by which the backend groups nodes (partitions, node pools). `topology`: the switches above it, from
    the outermost; nodes with the longest common beginning are nearest to each other.
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
    topology: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
