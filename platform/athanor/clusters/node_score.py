"""How far a node's past speaks against it: a sum over its incidents that decays with time. Pure.

An incident counts once for each job, by its gravest kind, and half as much after each HALF_LIFE. One that may have been
any node's counts little, so that only a node that recurs reaches the limit. What a preflight can find counts half once
a later preflight of the node has found nothing. An administrator's release clears what was before it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

HALF_LIFE = timedelta(days=7)
AVOIDED_FROM = 1.0
PROBATION_FROM = 0.5
COUNTED_FOR = 6 * HALF_LIFE  # afterwards an incident counts less than a fiftieth

SLOW_IN_PREFLIGHT = "preflight_slow"
BROKEN_IN_PREFLIGHT = "node_unfit"
PASSED_PREFLIGHT = "preflight_passed"
MEASURED = frozenset({
    "gpu_fault", "node_unfit", "node_storage_error", "silent_corruption", "slow_node", "hang", "device_exception",
    SLOW_IN_PREFLIGHT,
})  # fmt: skip
"""Kinds of incidents that the preflight of one node can confirm or clear: by its devices, memory and disk. The network
between nodes is not among them."""
AFTER_PASS = 0.5
PROVEN_CORRUPTION = "silent_corruption_proven"
WEIGHTS: Mapping[str, float] = {
    "gpu_fault": 1.5,  # uncorrected ECC errors included
    "node_unfit": 1.5,
    PROVEN_CORRUPTION: 1.2,  # of two replicas, the one that was wrong
    "node_storage_error": 1.0,
    "silent_corruption": 0.8,  # with two replicas, recorded at both nodes
    "slow_node": 0.6,
    "node_lost": 0.6,
    "startup_timeout": 0.6,  # of a node that did not join the others
    "device_exception": 0.5,
    SLOW_IN_PREFLIGHT: 0.4,
    "launch_failed": 0.3,
    "hang": 0.2,  # the node of the rank that others wait for: as often the program's fault
    "process_killed": 0.2,
    "collective_timeout": 0.2,
    "network_error": 0.2,
}
"""By the kind of an incident; other kinds, such as actions of administrators, do not count. One fault of a device is
enough for the node to be avoided for four days; a hang, or a lost connection, which is recorded at all nodes of an
attempt, needs five jobs."""


class Standing(StrEnum):
    """What follows from a score. `good`: nothing. `probation`: the node is used, and its next incident may suffice.
    `avoided`: new attempts run elsewhere, as long as their pool has enough other nodes."""

    GOOD = "good"
    PROBATION = "probation"
    AVOIDED = "avoided"


@dataclass(frozen=True)
class Incident:
    """An incident of a node, or a preflight that found nothing. `job_id`: of the affected job, empty if none was."""

    kind: str
    time: datetime
    job_id: str


@dataclass(frozen=True)
class Reason:
    """Incidents of one kind: of how many jobs, the newest, and what they add to the score."""

    kind: str
    jobs: int
    newest: datetime
    score: float


@dataclass(frozen=True)
class NodeScore:
    """The score of a node, 0 without incidents, and its reasons, the gravest first."""

    value: float = 0.0
    reasons: list[Reason] = field(default_factory=list)

    @property
    def standing(self) -> Standing:
        """Return what follows from the score."""
        if self.value >= AVOIDED_FROM:
            return Standing.AVOIDED
        return Standing.PROBATION if self.value >= PROBATION_FROM else Standing.GOOD


def score(incidents: Iterable[Incident], released_at: datetime | None, now: datetime) -> NodeScore:
    """Return the score of a node by its incidents since its last release. Preflights without a job count as one job:
    repeating one adds nothing."""
    gravest: dict[str, tuple[float, Incident]] = {}
    known = list(incidents)
    passed_at = max((each.time for each in known if each.kind == PASSED_PREFLIGHT), default=None)
    for incident in known:
        weight = WEIGHTS.get(incident.kind)
        if weight is None or (released_at is not None and incident.time <= released_at):
            continue
        counted = weight * 0.5 ** (max(now - incident.time, timedelta()) / HALF_LIFE)
        if passed_at is not None and incident.time < passed_at and incident.kind in MEASURED:
            counted *= AFTER_PASS
        if incident.job_id not in gravest or gravest[incident.job_id][0] < counted:
            gravest[incident.job_id] = (counted, incident)
    of_kind: dict[str, list[tuple[float, Incident]]] = {}
    for counted, incident in gravest.values():
        of_kind.setdefault(incident.kind, []).append((counted, incident))
    reasons = [
        Reason(kind, len(rows), max(incident.time for _, incident in rows), sum(counted for counted, _ in rows))
        for kind, rows in of_kind.items()
    ]
    reasons.sort(key=lambda reason: -reason.score)
    return NodeScore(sum(reason.score for reason in reasons), reasons)


def avoided_names(scores: Mapping[str, NodeScore]) -> list[str]:
    """Return the nodes that new attempts avoid, the worst first."""
    found = [(-each.value, name) for name, each in scores.items() if each.standing is Standing.AVOIDED]
    return [name for _, name in sorted(found)]
