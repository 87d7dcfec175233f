"""Simulations that administrators ask for: real or made-up jobs, tried on the present tree and on a proposed one.

A row is the request; a worker takes it under a lease, and what it found is stored with it.
"""

import logging
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Now
from django.utils import timezone
from pydantic import Field, TypeAdapter

from athanor.accounts.models import User
from athanor.clusters.models import Pool
from athanor.core import ids, leases, task_triggers
from athanor.core.errors import Conflict, FieldProblem, Gone, Invalid, NotFound
from athanor.jobs.models import Attempt, Job
from athanor.quotas import changes, selectors, services
from athanor.quotas.tree import GroupDocument, NodeChange, Tree, TreeDocument
from athanor.quotas.usage import capacity_nodes
from athanor.scheduling.models import Simulation
from athanor.scheduling.policy import snapshot as pure
from athanor.scheduling.simulator.engine import PastJob, Plan, simulate
from athanor.scheduling.simulator.report import Report, build_report
from athanor.scheduling.simulator.workload import Submitter, generate
from trainer.contract.base import SpecModel

log = logging.getLogger(__name__)
LEASE_SECONDS = 1800
MAX_TRIES = 3
MAX_JOBS = 400_000
MAX_WAITING = 20
DAY = 86_400


class MadeUp(SpecModel):
    """Generated jobs of all teams, in proportion to their weights in the tree, for all pools with slots."""

    days: Annotated[int, Field(ge=1, le=366)] = 30
    """Days over which the jobs arrive."""
    jobs_per_day: Annotated[int, Field(ge=1, le=2000)] = 100
    """Jobs per day, on average."""
    largest: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Maximum number of slots of a job. Sizes are powers of two; small jobs are more frequent."""
    median_minutes: Annotated[int, Field(ge=1, le=7 * 1440)] = 60
    """Median run time of a job in minutes."""
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    """Seed of the random numbers. The same request with the same seed generates the same jobs."""


class ProposedSettings(SpecModel):
    """Admission settings to try. Fields that are left out, or null, are as they are now."""

    fair_share: bool | None = None
    """Whether teams are ranked by their share of past and present usage."""
    half_life_seconds: Annotated[int, Field(ge=60, le=365 * DAY)] | None = None
    """Half-life of past usage in fair-share ranking, in seconds."""
    age_step_seconds: Annotated[int, Field(ge=0, le=365 * DAY)] | None = None
    """Waiting time in seconds that counts as one priority class. 0: waiting does not raise the priority."""
    backfill: bool | None = None
    """Whether a job may start before an earlier one that it does not delay."""
    preempt: bool | None = None
    """Whether running jobs may be asked to checkpoint and wait for others."""
    protected_seconds: Annotated[int, Field(ge=0, le=30 * DAY)] | None = None
    """Minimum run time in seconds before a job can be preempted. It doubles with each preemption of the job."""


class SimulationRequest(SpecModel):
    """Jobs to replay, and what is proposed: a quota tree, settings, or both. If nothing is proposed, only the present
    tree and settings are simulated."""

    name: Annotated[str, Field(max_length=100)] = ""
    """Name by which to recognise the simulation."""
    history_days: Annotated[int, Field(ge=1, le=366)] | None = None
    """Replay the jobs that were submitted in this many days and have ended. Give this or `generate`."""
    generate: MadeUp | None = None
    """Replay generated jobs. Give this or `history_days`."""
    changes: Annotated[list[NodeChange], Field(max_length=1000)] = []
    """Proposed changes of the present tree, applied in order."""
    organisation: GroupDocument | None = None
    """Root of a proposed complete tree. Give this or `changes`, or neither."""
    settings: ProposedSettings = ProposedSettings()
    """Proposed admission settings."""
    checkpoint_minutes: Annotated[int, Field(ge=1, le=1440)] = 30
    """Minutes between checkpoints of a job. A preempted job loses what it did since the last."""


class SimulationResult(SpecModel):
    """Outcome of the replay."""

    present: Report
    """Outcome with the present tree and settings."""
    proposed: Report | None
    """Outcome with what is proposed. Null if nothing is."""


class RefusedSimulation(Exception):
    """It cannot be carried out; the text is for people."""


def ask(request: SimulationRequest, user: User) -> Simulation:
    """Queue a simulation. Raises Invalid for an invalid request, Conflict if too many wait already."""
    if (request.history_days is None) == (request.generate is None):
        detail = "give either history_days or generate"
        problem = FieldProblem("/history_days", "either_or", detail)
        raise Invalid("invalid_simulation", detail, remedy=detail, problems=(problem,))
    if request.changes and request.organisation is not None:
        detail = "give either changes or organisation (a complete tree), not both"
        problem = FieldProblem("/changes", "either_or", detail)
        raise Invalid("invalid_simulation", detail, remedy=detail, problems=(problem,))
    _proposed(request, selectors.tree())
    if due().count() >= MAX_WAITING:
        detail = f"{MAX_WAITING} simulations wait already"
        raise Conflict("too_many_simulations", detail, remedy="try again when some of them are done")
    with transaction.atomic():
        row = Simulation.objects.create(created_by=user, request=request.model_dump(mode="json", exclude_unset=True))
        task_triggers.trigger_after_commit(task_triggers.SIMULATE)
    return row


def due() -> QuerySet[Simulation]:
    """Return the simulations that are not done, oldest first."""
    return Simulation.objects.filter(ended_at__isnull=True).order_by("id")


def run_due() -> None:
    """Run the simulations that are not done, each under a lease."""
    for lease in leases.claim_each(due(), seconds=LEASE_SECONDS, limit=MAX_WAITING):
        _run(lease)


def _run(lease: leases.Lease) -> None:
    Simulation.objects.filter(pk=lease.pk).update(started_at=Now(), tries=F("tries") + 1)
    row = Simulation.objects.get(pk=lease.pk)
    result, error = None, ""
    try:
        _check_tries(row)
        result = carry_out(SimulationRequest.model_validate(row.request)).model_dump(mode="json")
    except (RefusedSimulation, Invalid, ValueError) as refused:
        error = str(refused)
    except Exception as failed:  # whatever it is, it is shown with it, and holds up no other
        log.exception("simulation %s failed", row.pk)
        error = f"{type(failed).__name__}: {failed}"
    with leases.applying(Simulation, lease) as held:
        if held is not None:
            held.result, held.error, held.ended_at = result, error[:2000], timezone.now()
            held.save(update_fields=["result", "error", "ended_at"])


def _check_tries(row: Simulation) -> None:
    if row.tries > MAX_TRIES:
        raise RefusedSimulation(f"{MAX_TRIES} workers ended while they were at it; ask for a shorter history.")


def carry_out(request: SimulationRequest) -> SimulationResult:
    """Run a simulation. Raises RefusedSimulation if there are none, or too many."""
    present, settings = selectors.tree(), _settings()
    pools = [
        pure.Pool(pool.id, str(pool), pool.accelerator, pool.slots, pool.slots, spare=pool.spare_slots)
        for pool in Pool.objects.select_related("cluster").order_by("id")
        if pool.slots
    ]
    jobs = _history(request.history_days, pools) if request.history_days else _made_up(request, present, pools)
    if not jobs:
        raise RefusedSimulation("There are no finished jobs in that time; request more days, or generated jobs.")
    if len(jobs) > MAX_JOBS:
        raise RefusedSimulation(f"These are {len(jobs)} jobs, and {MAX_JOBS} can be tried; ask for fewer days.")
    plan = Plan(capacity_nodes(present), pools, settings, request.checkpoint_minutes * 60)
    found = build_report(simulate(plan, jobs))
    asked = request.settings.model_dump(exclude_none=True)
    if not asked and not request.changes and request.organisation is None:
        return SimulationResult(present=found, proposed=None)
    other = TypeAdapter(pure.Settings).validate_python({**_values(settings), **asked})
    wanted = Plan(capacity_nodes(_proposed(request, present)), pools, other, request.checkpoint_minutes * 60)
    return SimulationResult(present=found, proposed=build_report(simulate(wanted, jobs)))


def _proposed(request: SimulationRequest, tree: Tree) -> Tree:
    """Return the changed tree. Raises Invalid if the changes do not apply to it."""
    if request.organisation is not None:
        return changes.declared(tree, TreeDocument(organisation=request.organisation))
    return changes.changed(tree, request.changes) if request.changes else tree


def _settings() -> pure.Settings:
    row = services.settings()
    return pure.Settings(**{name: getattr(row, name) for name in _values(pure.Settings())})


def _values(settings: pure.Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in pure.Settings.__dataclass_fields__}


def _history(days: int, pools: list[pure.Pool]) -> list[PastJob]:
    """Jobs that came in the last days, ran and ended; each for as long as its attempts ran in all."""
    since = timezone.now() - timedelta(days=days)
    known = {pool.id for pool in pools}
    ran = (
        Attempt.objects.filter(job=OuterRef("pk"), ended_at__isnull=False)
        .order_by()
        .values("job")
        .annotate(ran=Sum(F("ended_at") - Coalesce("launched_at", "started_at", "created_at")))
        .values("ran")
    )
    rows = (
        Job.objects.filter(created_at__gte=since, finished_at__isnull=False, admitted_at__isnull=False)
        .annotate(ran=Subquery(ran))
        .filter(ran__gt=timedelta())
        .order_by("id")
    )
    values = rows.values_list(
        "id", "created_at", "team__quota_node__id", "pool_id", "slots", "ran", "time_limit_seconds", "priority"
    )
    return [
        PastJob(
            job_id,
            int((created_at - since).total_seconds()),
            node,
            pool_id,
            slots,
            max(1, int(seconds.total_seconds())),
            limit,
            priority,
        )
        for job_id, created_at, node, pool_id, slots, seconds, limit, priority in values[: MAX_JOBS + 1]
        if pool_id in known
    ]


def _made_up(request: SimulationRequest, tree: Tree, pools: list[pure.Pool]) -> list[PastJob]:
    made = request.generate
    assert made is not None
    teams = sorted((node for node in tree.values() if node.team), key=lambda node: node.id)
    if not teams or not pools:
        raise RefusedSimulation("Without a team and a pool nobody could submit; make one of each.")
    ids = tuple(pool.id for pool in pools)
    submitters = [Submitter(team.id, ids, team.weight, made.median_minutes * 60) for team in teams]
    make = partial(generate, submitters, days=made.days, jobs_per_day=made.jobs_per_day)
    return make(largest=made.largest, seed=made.seed)


def all_simulations() -> QuerySet[Simulation]:
    """Return the simulations without their results."""
    return Simulation.objects.select_related("created_by").defer("result")


def find(simulation_id: str) -> Simulation:
    """Return a simulation. Raises NotFound, and Gone for an id from before what is stored."""
    row = Simulation.objects.select_related("created_by").filter(pk=simulation_id).first()
    days = settings.ATHANOR.history_days
    if row is None and days and simulation_id < ids.earliest_id("sim", timezone.now() - timedelta(days=days)):
        raise Gone(
            "simulation_expired",
            f"simulation {simulation_id} is no longer stored: results are, for {days} days",
            remedy="run it again; to store later ones for longer, raise ATHANOR_HISTORY_DAYS",
        )
    if row is None:
        raise NotFound("simulation", simulation_id)
    return row
