"""Predict the admission decision and the start of a job that is not submitted yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from athanor.budgets import schedule_windows
from athanor.budgets.reservations import PlannedReservations
from athanor.jobs.models import Job
from athanor.quotas.services import leaf_of
from athanor.scheduling import estimates, explain, snapshots
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Decision, Snapshot, Waiting
from athanor.scheduling.run_times import run_times, seconds_of_like_jobs
from athanor.scheduling.start_forecast import Forecast, forecasts

SAMPLES = 9
CONSIDERED = 500


@dataclass(frozen=True)
class StartEstimate:
    """When a job would start, and why not now.

    `facts` are those that a waiting job stores (explain.py); `quotes` are what its start would reserve.
    """

    decision: Decision
    facts: Mapping[str, Any]
    forecast: Forecast
    quotes: PlannedReservations


class StartEstimator:
    """Start estimates from one snapshot. The jobs need not be saved."""

    def __init__(self) -> None:
        self._now = timezone.now()
        self._taken = snapshots.take(self._now, CONSIDERED)
        self._times, self._factors = run_times(self._taken.snapshot), estimates.learned_factors()

    def estimate(self, job: Job) -> StartEstimate:
        """Return the start estimate of a job, saved or not."""
        leaf = leaf_of(job.team).id
        candidate, quoted = snapshots.candidate(job, leaf, self._now)
        snapshot = _with(self._taken.snapshot, candidate, quoted)
        decision = next(found for found in decide(snapshot) if found.job_id == job.id)
        facts = explain.facts(decision, leaf, explain.holders(snapshot))
        if decision.admitted:
            return StartEstimate(decision, facts, Forecast(0, 0), quoted)
        if candidate.hold is not None:
            opens = schedule_windows.opens_at(job, self._now)
            left = int((opens - self._now).total_seconds()) if opens else None
            return StartEstimate(decision, facts, Forecast(left, None), quoted)
        first = _with(estimates.first_in_line(snapshot, job.pool_id), candidate, quoted)
        times = replace(self._times, alike={**self._times.alike, job.id: seconds_of_like_jobs(job)})
        found = forecasts(first, [job.id], times, samples=SAMPLES)
        return StartEstimate(decision, facts, self._factors.of(found[job.id]), quoted)


def _with(snapshot: Snapshot, candidate: Waiting, quoted: PlannedReservations) -> Snapshot:
    """Return the snapshot with the candidate, even if it is too far back in line to be considered."""
    others: Sequence[Waiting] = [job for job in snapshot.waiting if job.job_id != candidate.job_id]
    known = {budget.id for budget in snapshot.budgets}
    more = [budget for budget in snapshots.budgets_of(quoted) if budget.id not in known]
    return replace(snapshot, waiting=[*others, candidate], budgets=[*snapshot.budgets, *more])
