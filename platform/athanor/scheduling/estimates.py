"""Start estimates of queued jobs, and their calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.utils import timezone

from athanor.jobs import transitions
from athanor.jobs.models import Job
from athanor.scheduling import snapshots
from athanor.scheduling.models import StartEstimate
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Snapshot
from athanor.scheduling.run_times import run_times
from athanor.scheduling.start_forecast import CalibrationFactors, Forecast, calibration_factors, forecasts

MAX_ESTIMATES_PER_POOL = 60  # jobs at the head of the queue that get an estimate
JUDGED = 500  # latest estimates that calibration uses


@dataclass(frozen=True)
class Calibration:
    """Accuracy of estimates whose jobs have started.

    The shares that had started by their P50 and P90 (ideal: 0.5 and 0.9), and the median error of the P50 in seconds.
    """

    judged: int
    by_p50: float | None
    by_p90: float | None
    median_error_seconds: float | None


def estimate_due() -> None:
    """Estimate the start of the first jobs in line of each pool."""
    now = timezone.now()
    taken = snapshots.take(now)
    times, stretch = run_times(taken.snapshot), learned_factors()
    estimates: dict[str, dict[str, int | None]] = {}
    for pool in taken.snapshot.pools:
        first = first_in_line(taken.snapshot, pool.id)
        ids = [job.job_id for job in first.waiting if job.pool == pool.id]
        for job_id, raw in (forecasts(first, ids, times) if ids else {}).items():
            found = stretch.of(raw)
            estimates[job_id] = {
                "p50_seconds": found.p50_seconds,
                "p90_seconds": found.p90_seconds,
                "estimated_at": int(now.timestamp()),
            }
            _note(taken.rows[job_id], raw, found, now)
    transitions.add_facts_of_waiting(estimates)


def first_in_line(snapshot: Snapshot, pool_id: str) -> Snapshot:
    """Return the snapshot reduced to the pools of this pool's accelerator and the first jobs in line of each."""
    accelerator = next(pool.accelerator for pool in snapshot.pools if pool.id == pool_id)
    pools = [pool for pool in snapshot.pools if pool.accelerator == accelerator]
    here = {pool.id for pool in pools}
    waiting = [job for job in snapshot.waiting if job.pool in here]
    holdings = [holding for holding in snapshot.holdings if holding.pool in here]
    narrowed = replace(snapshot, pools=pools, waiting=waiting, holdings=holdings)
    order = {decision.job_id: decision.position for decision in decide(narrowed)}
    first = [job for job in waiting if order.get(job.job_id, 0) <= MAX_ESTIMATES_PER_POOL]
    return replace(narrowed, waiting=first)


def learned_factors() -> CalibrationFactors:
    """Return the calibration factors from the newest judged estimates."""
    rows = StartEstimate.objects.filter(started_at__isnull=False).order_by("-started_at")
    return calibration_factors(
        [
            (row.raw_p50_seconds, row.raw_p90_seconds, int((row.started_at - row.made_at).total_seconds()))
            for row in rows[:JUDGED]
            if row.started_at is not None
        ]
    )


def _note(row: Job, raw: Forecast, found: Forecast, now: datetime) -> None:
    """Record the first estimate of each wait: the one that calibration judges."""
    if raw.p50_seconds is None or raw.p90_seconds is None or found.p50_seconds is None or found.p90_seconds is None:
        return
    if StartEstimate.objects.filter(job_id=row.id, made_at__gte=row.queued_at).exists():
        return
    StartEstimate.objects.create(
        job_id=row.id,
        team_id=row.team_id,
        made_at=now,
        p50_at=now + timedelta(seconds=found.p50_seconds),
        p90_at=now + timedelta(seconds=found.p90_seconds),
        raw_p50_seconds=raw.p50_seconds,
        raw_p90_seconds=raw.p90_seconds,
    )


def note_starts(jobs: Sequence[Job], now: datetime) -> None:
    """Record the actual start of jobs that were estimated."""
    StartEstimate.objects.filter(job__in=[job.pk for job in jobs], started_at__isnull=True).update(started_at=now)


def calibration() -> Calibration:
    """Return how well the newest estimates met the actual starts."""
    rows = StartEstimate.objects.filter(started_at__isnull=False).order_by("-started_at")
    judged = [(row.p50_at, row.p90_at, row.started_at) for row in rows[:JUDGED] if row.started_at is not None]
    if not judged:
        return Calibration(0, None, None, None)
    errors = sorted(abs((started - p50).total_seconds()) for p50, _, started in judged)
    return Calibration(
        judged=len(judged),
        by_p50=sum(started <= p50 for p50, _, started in judged) / len(judged),
        by_p90=sum(started <= p90 for _, p90, started in judged) / len(judged),
        median_error_seconds=errors[len(errors) // 2],
    )
