"""Plan a job that is not submitted yet: its start, cost and budgets, and changes with which it might start sooner."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from athanor.budgets import reservations
from athanor.clusters.models import Pool
from athanor.clusters.selectors import enabled_pools
from athanor.core import tenancy
from athanor.core.errors import Invalid
from athanor.jobs import services
from athanor.jobs.models import Job
from athanor.jobs.services import Submission
from athanor.quotas import limits, selectors
from athanor.scheduling.run_lengths import predict
from athanor.scheduling.run_times import seconds_of_like_jobs
from athanor.scheduling.what_if import StartEstimate, StartEstimator
from athanor.specs.v1 import JobSpec

MAX_OTHER_POOLS = 3
MIN_TIME_LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Cost:
    """Cost of a job that runs until its time limit, in millionths of the currency."""

    amount: int
    currency: str


@dataclass(frozen=True)
class ExpectedRun:
    """How long such a job runs, by like ones, and what that costs now, in millionths of the currency: half take at most
    the P50, nine of ten at most the P90."""

    p50_seconds: int
    p90_seconds: int
    p50_amount: int
    p90_amount: int
    like_jobs: int


@dataclass(frozen=True)
class BudgetEffect:
    """What a start would reserve of a budget's current period, in slot-seconds or millionths of a currency."""

    name: str
    unit: str
    reserves: int
    available: int
    hard: bool


@dataclass(frozen=True)
class Variation:
    """A changed spec. `changes` is the change as a JSON merge patch."""

    label: str
    changes: dict[str, Any]
    spec: JobSpec
    pool: Pool


@dataclass(frozen=True)
class Alternative:
    """A variation of a spec with its own start estimate and cost."""

    label: str
    changes: dict[str, Any]
    start: StartEstimate
    cost: Cost


@dataclass(frozen=True)
class JobPlan:
    """What a submission would do now.

    `expected` is None if no like job has succeeded. `alternatives` is empty if the job would start now.
    """

    start: StartEstimate
    cost: Cost
    expected: ExpectedRun | None
    budgets: list[BudgetEffect]
    alternatives: list[Alternative]


def plan_job(submission: Submission) -> JobPlan:
    """Return the plan of a submission. Nothing is stored.

    The jobs of all teams are considered; the plan contains only sums over those of other teams.
    """
    with tenancy.unrestricted():
        estimator, job = StartEstimator(), services.draft(submission)
        start = estimator.estimate(job)
        variations = [] if start.decision.admitted else [*_variations(submission), *_later_start(submission, start)]
        return JobPlan(
            start=start,
            cost=_cost_of(job),
            expected=_expected_run(job),
            budgets=_budget_effects(start),
            alternatives=[_alternative(each, submission, estimator) for each in variations],
        )


def _alternative(variation: Variation, submission: Submission, estimator: StartEstimator) -> Alternative:
    job = services.draft(replace(submission, spec=variation.spec, pool=variation.pool))
    return Alternative(variation.label, variation.changes, estimator.estimate(job), _cost_of(job))


def _cost_of(job: Job) -> Cost:
    return Cost(*reservations.cost_at_time_limit(job, job.not_before or timezone.now()))


def _expected_run(job: Job) -> ExpectedRun | None:
    seconds = seconds_of_like_jobs(job)
    if not seconds:
        return None
    p50, p90 = (min(round(each), job.time_limit_seconds) for each in predict(seconds))
    begin = job.not_before or timezone.now()
    amounts = [reservations.cost_of(job, begin, each) for each in (p50, p90)]
    return ExpectedRun(p50, p90, amounts[0], amounts[1], len(seconds))


def _budget_effects(start: StartEstimate) -> list[BudgetEffect]:
    costs = {budget: amount for found in start.quotes.costs.values() for budget, amount in found}
    return [
        BudgetEffect(budget.name, budget.unit, costs[budget.id], budget.available, budget.hard)
        for budget in start.quotes.budgets
        if budget.id in costs
    ]


def _variations(submission: Submission) -> Iterator[Variation]:
    """Yield the spec with half the nodes, half the processes, half the time limit, and on other pools.

    A variation that a submission would refuse is left out.
    """
    resources = submission.spec.resources
    if resources.nodes > 1:
        half = resources.nodes // 2
        yield from _changed_resources(
            submission, f"{half} nodes instead of {resources.nodes}", submission.pool, nodes=half
        )
    if resources.processes_per_node > 1:
        half = resources.processes_per_node // 2
        label = f"{half} processes per node instead of {resources.processes_per_node}"
        yield from _changed_resources(submission, label, submission.pool, processes_per_node=half)
    shorter = submission.spec.time_limit_seconds // 2
    if shorter >= MIN_TIME_LIMIT_SECONDS:
        changes = {"time_limit_seconds": shorter}
        spec = submission.spec.model_copy(update=changes)
        yield from _if_allowed(submission, Variation("half the time limit", changes, spec, submission.pool))
    found = 0
    for pool in enabled_pools().exclude(pk=submission.pool.pk):
        cluster = pool.cluster.name
        changed = _changed_resources(submission, f"pool {pool}", pool, cluster=cluster, accelerator=pool.accelerator)
        for variation in changed:
            found += 1
            yield variation
        if found == MAX_OTHER_POOLS:
            return


def _later_start(submission: Submission, start: StartEstimate) -> Iterator[Variation]:
    """Yield a start in the next period of the budget that blocks the job. Yield nothing for another blocker."""
    blocker = start.decision.blocker
    if blocker is None or blocker.kind != "budget":
        return
    begins = reservations.period_end(blocker.id, timezone.now())
    schedule = submission.spec.schedule.model_copy(update={"not_before": begins})
    changes = {"schedule": {"not_before": begins.isoformat()}}
    label = f"a start from {begins:%Y-%m-%d %H:%M} UTC, when budget {blocker.name} is filled again"
    yield Variation(label, changes, submission.spec.model_copy(update={"schedule": schedule}), submission.pool)


def _changed_resources(submission: Submission, label: str, pool: Pool, **resources: Any) -> Iterator[Variation]:
    spec = submission.spec.model_copy(update={"resources": submission.spec.resources.model_copy(update=resources)})
    yield from _if_allowed(submission, Variation(label, {"resources": resources}, spec, pool))


def _if_allowed(submission: Submission, variation: Variation) -> Iterator[Variation]:
    """Yield the variation if it fits its pool and the limits of the team's quota nodes."""
    try:
        services.check_fits(variation.spec, variation.pool)
        limits.check(selectors.path_of_team(submission.team), variation.spec, variation.pool)
    except Invalid:
        return
    yield variation
