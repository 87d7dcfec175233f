"""What admission would say of a job that is not submitted yet, as asked for and otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from athanor.accounts.models import Team
from athanor.clusters.models import Pool
from athanor.quotas.services import leaf_of
from athanor.scheduling import estimates, explain, snapshots
from athanor.scheduling.forecast import Forecast, forecasts
from athanor.scheduling.policy import decide
from athanor.scheduling.snapshot import Decision, Hold, Snapshot, Waiting

CANDIDATE = "job_" + "Z" * 26  # the youngest of all
SAMPLES = 9
CONSIDERED = 500


@dataclass(frozen=True)
class Asked:
    """A job as it would be submitted. `costs` of budgets, `hold`: as for one that waits."""

    team: Team
    pool: Pool
    slots: int
    nodes: int
    priority: int
    time_limit_seconds: int
    costs: tuple[tuple[str, int], ...] = ()
    hold: Hold | None = None


@dataclass(frozen=True)
class Outlook:
    """`told` are the facts that a job which waits would be told (explain.py)."""

    decision: Decision
    told: Mapping[str, Any]
    forecast: Forecast


class Outlooks:
    """All of one question: what is known is read once."""

    def __init__(self) -> None:
        self._snapshot: Snapshot = snapshots.take(timezone.now(), CONSIDERED).snapshot
        self._shares = estimates.shares_of(self._snapshot)

    def of(self, asked: Asked) -> Outlook:
        leaf = leaf_of(asked.team).id
        candidate = Waiting(
            CANDIDATE,
            leaf,
            asked.pool.id,
            min(asked.slots, asked.pool.slots),
            asked.priority,
            lasts_seconds=asked.time_limit_seconds,
            nodes=asked.nodes,
            costs=asked.costs,
            hold=asked.hold,
        )
        snapshot = replace(self._snapshot, waiting=[*self._snapshot.waiting, candidate])
        decision = next(found for found in decide(snapshot) if found.job_id == CANDIDATE)
        told = explain.facts(decision, leaf, explain.holders(snapshot))
        if decision.admitted:
            return Outlook(decision, told, Forecast(0, 0))
        if asked.hold is not None:
            return Outlook(decision, told, Forecast(None, None))
        first = estimates.first_in_line(snapshot, asked.pool.id)
        found = forecasts(_with(first, candidate), [CANDIDATE], self._shares, samples=SAMPLES)
        return Outlook(decision, told, found[CANDIDATE])


def _with(snapshot: Snapshot, candidate: Waiting) -> Snapshot:
    """Further back in the line than anybody looks, it would be left out."""
    others: Sequence[Waiting] = [job for job in snapshot.waiting if job.job_id != candidate.job_id]
    return replace(snapshot, waiting=[*others, candidate])
