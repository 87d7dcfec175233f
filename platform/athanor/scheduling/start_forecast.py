"""Estimate when queued jobs start: simulate the admission policy many times with past run times (Monte Carlo). Pure."""

import heapq
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Holding, Snapshot, Waiting
from athanor.scheduling.run_lengths import RunTimes

MIN_SAMPLES = 20  # judged forecasts before calibration
MAX_FACTOR = 10.0
HORIZON_SECONDS = 60 * 86_400
CHECKPOINT_SECONDS = 30  # assumed time for a preempted job to save its checkpoint


@dataclass(frozen=True)
class Forecast:
    """Estimated start in seconds from now; None if beyond the horizon."""

    p50_seconds: int | None
    p90_seconds: int | None


@dataclass(frozen=True)
class CalibrationFactors:
    """Factors on forecasts, so that they are met as often as they claim."""

    p50: float = 1.0
    p90: float = 1.0

    def of(self, found: Forecast) -> Forecast:
        """Return a forecast with both quantiles scaled."""
        if found.p50_seconds is None or found.p90_seconds is None:
            return found
        p50 = int(found.p50_seconds * self.p50)
        return Forecast(p50, max(int(found.p90_seconds * self.p90), p50))


def calibration_factors(judged: Sequence[tuple[int, int, int]]) -> CalibrationFactors:
    """Return the factors with which 50 % and 90 % of past forecasts would have been met.

    `judged`: (P50, P90, actual wait) in seconds, before calibration. This is split conformal prediction with the ratio
    as its score. It also accounts for later arrivals, which no forecast contains.
    """
    if len(judged) < MIN_SAMPLES:
        return CalibrationFactors()
    p50 = sorted(waited / max(p50, 1) for p50, _, waited in judged)
    p90 = sorted(waited / max(p90, 1) for _, p90, waited in judged)
    return CalibrationFactors(_within(p50[len(p50) // 2]), _within(p90[min(int(0.9 * (len(p90) + 1)), len(p90) - 1)]))


def _within(factor: float) -> float:
    return min(max(factor, 1 / MAX_FACTOR), MAX_FACTOR)


def forecasts(
    snapshot: Snapshot,
    job_ids: Sequence[str],
    times: RunTimes,
    *,
    samples: int = 15,
    seed: int = 0,
    max_events: int = 150,
) -> dict[str, Forecast]:
    """Return a forecast for each of `job_ids`. Later arrivals are not simulated."""
    starts: dict[str, list[int]] = {job_id: [] for job_id in job_ids}
    for sample in range(samples):
        chance = random.Random(seed * 1_000 + sample)  # noqa: S311 - of a model, no secret
        found = _play(snapshot, frozenset(job_ids), times, chance, max_events)
        for job_id in job_ids:
            starts[job_id].append(found.get(job_id, HORIZON_SECONDS))
    return {job_id: Forecast(_quantile(those, 0.5), _quantile(those, 0.9)) for job_id, those in starts.items()}


def _quantile(values: list[int], share: float) -> int | None:
    found = sorted(values)[min(int(share * len(values)), len(values) - 1)]
    return None if found >= HORIZON_SECONDS else found


def _play(
    snapshot: Snapshot, wanted: frozenset[str], times: RunTimes, chance: random.Random, max_events: int
) -> dict[str, int]:
    """Return the start of each of `wanted` in one simulated future."""
    clock = 0
    started: dict[str, int] = {}
    waiting = {job.job_id: job for job in snapshot.waiting if job.hold is None}
    holdings, ends = _running(snapshot, times, chance)
    requeued: dict[str, Waiting] = {}
    left = set(wanted & waiting.keys())
    for _ in range(max_events):
        now = [replace(job, waited_seconds=job.waited_seconds + clock) for job in waiting.values()]
        decisions = decide(replace(snapshot, waiting=now, holdings=_at(holdings, clock)))
        for decision in decisions:
            if decision.admitted:
                job = waiting.pop(decision.job_id)
                started.setdefault(job.job_id, clock)
                left.discard(job.job_id)
                lasts = job.lasts_seconds or HORIZON_SECONDS
                heapq.heappush(ends, (clock + times.draw(chance, job.job_id, job.node, lasts, 0), job.job_id))
                holdings[job.job_id] = (_as_holding(job), clock)
            for victim in decision.victims:
                holding, since = holdings[victim]
                holdings[victim] = (replace(holding, leaving=True), since)
                heapq.heappush(ends, (clock + CHECKPOINT_SECONDS, victim))
                requeued[victim] = _as_waiting(holding)
        if not left:
            break
        while ends and ends[0][1] not in holdings:
            heapq.heappop(ends)  # of one that was preempted before its end
        if not ends or ends[0][0] > HORIZON_SECONDS:
            break
        clock, ended = heapq.heappop(ends)
        del holdings[ended]
        if ended in requeued:
            waiting[ended] = requeued.pop(ended)
    return started


def _running(
    snapshot: Snapshot, times: RunTimes, chance: random.Random
) -> tuple[dict[str, tuple[Holding, int]], list[tuple[int, str]]]:
    """Return the jobs that hold slots, with the time of their facts, and their ends in this future."""
    ends: list[tuple[int, str]] = []
    for holding in snapshot.holdings:
        left = CHECKPOINT_SECONDS if holding.leaving else holding.ends_in_seconds
        if left is not None and not holding.leaving:
            limit = left + holding.ran_seconds
            left = times.draw(chance, holding.job_id, holding.node, limit, holding.ran_seconds)
        if left is not None:
            ends.append((left, holding.job_id))
    heapq.heapify(ends)
    return {holding.job_id: (holding, 0) for holding in snapshot.holdings}, ends


def _at(holdings: Mapping[str, tuple[Holding, int]], clock: int) -> list[Holding]:
    found = []
    for holding, since in holdings.values():
        passed = clock - since
        left = None if holding.ends_in_seconds is None else max(holding.ends_in_seconds - passed, 0)
        ran = holding.ran_seconds + passed
        unsaved = min(holding.unsaved_seconds + passed, ran)
        found.append(replace(holding, ends_in_seconds=left, ran_seconds=ran, unsaved_seconds=unsaved))
    return found


def _as_holding(job: Waiting) -> Holding:
    return Holding(job.job_id, job.node, job.pool, job.slots, job.priority, ends_in_seconds=job.lasts_seconds)


def _as_waiting(holding: Holding) -> Waiting:
    return Waiting(
        holding.job_id, holding.node, holding.pool, holding.slots, holding.priority,
        lasts_seconds=holding.ends_in_seconds,
    )  # fmt: skip
