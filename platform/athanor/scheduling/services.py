"""Run admission cycles: take a snapshot under the admission lock, decide, and apply the decisions."""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from athanor.budgets import ledger
from athanor.clusters.models import Pool
from athanor.core import clock
from athanor.core.metrics import ADMISSION_CYCLE_SECONDS
from athanor.jobs import transitions
from athanor.jobs.models import Dependency, Job
from athanor.jobs.reasons import MEANINGS, Reason
from athanor.jobs.states import FINAL, Desired, JobStatus
from athanor.jobs.transitions import WaitingFor
from athanor.quotas.services import locked_root
from athanor.scheduling import estimates, explain, snapshots, stored_cycles
from athanor.scheduling.policy import cycle as admission_cycle
from athanor.scheduling.policy.snapshot import Decision, Snapshot
from athanor.scheduling.snapshots import TakenSnapshot

BATCH = 1000
MAX_CYCLES = 50  # per run of the task; the next run continues
REFRESH_AFTER = timedelta(seconds=5)  # of changed numbers in a reason; a changed reason is written immediately
MAX_REASONS = 300  # written per cycle


def admit() -> int:
    """Admit the jobs that can start now and record why the others wait. Return the number admitted."""
    _settle_waiting()
    admitted = 0
    for _ in range(MAX_CYCLES):
        with ADMISSION_CYCLE_SECONDS.time():
            started, done = _cycle()
        admitted += started
        if done or not started:
            break
    return admitted


def snapshot_now() -> Snapshot:
    """Return the current snapshot without the admission lock, for previews."""
    return snapshots.take(timezone.now()).snapshot


def _cycle() -> tuple[int, bool]:
    """Run one cycle. Return the number of jobs admitted, and whether another cycle could admit no other job."""
    with transaction.atomic():
        # One admission at a time: the holder of this lock sees every earlier admission, quota and budget.
        locked_root()
        list(Pool.objects.select_for_update(no_key=True).order_by("id").values_list("id"))
        began, now = time.monotonic(), timezone.now()
        taken = snapshots.take(now)
        decisions = admission_cycle.decide(taken.snapshot)
        took = time.monotonic() - began
        startable = [decision.job_id for decision in decisions if decision.admitted]
        cycle = None
        if startable or any(decision.victims for decision in decisions):
            cycle = stored_cycles.store(taken.snapshot, decisions, took).pk
        _reclaim(decisions, taken, cycle)
        _report_reasons(decisions, taken, now)
        if not taken.complete:
            _report_unconsidered(taken)
        started = _start(startable, cycle)
    return started, taken.complete or _is_full(taken, set(startable))


def _is_full(taken: TakenSnapshot, started: set[str]) -> bool:
    """Return whether every pool that jobs wait for is full."""
    left = {pool.id: pool.usable for pool in taken.snapshot.pools if pool.id in taken.lengths}
    for held in taken.snapshot.holdings:
        if held.pool in left:
            left[held.pool] -= held.slots
    for job in taken.snapshot.waiting:
        if job.job_id in started:
            left[job.pool] -= job.slots
    return all(slots <= 0 for slots in left.values())


def _start(job_ids: Sequence[str], cycle: int | None) -> int:
    """Admit jobs; one that a user's request has locked is left to the next cycle."""
    free = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
        pk__in=job_ids, status=JobStatus.QUEUED.value, desired=Desired.RUN.value
    )
    jobs = list(free.defer("spec", "resolved_spec").order_by("id"))
    if jobs:
        transitions.admit_all(jobs, actor="scheduling", data={"decision": cycle})
        estimates.note_starts(jobs, timezone.now())
        ledger.reserve(jobs, timezone.now())  # last: ending a job locks the job before its budgets
    return len(jobs)


def _reclaim(decisions: Sequence[Decision], taken: TakenSnapshot, cycle: int | None) -> None:
    """Ask the victims to checkpoint and release their slots."""
    for decision in decisions:
        if not decision.victims:
            continue
        claimant = taken.rows[decision.job_id]
        victims = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(pk__in=decision.victims)
        for victim in victims.select_related("team").order_by("id"):
            same_team = victim.team_id == claimant.team_id
            winner = f"{claimant.id} of higher priority" if same_team else "a job of a team that is within its quota"
            facts = {"decision": cycle, **({"for": claimant.id} if same_team else {})}
            detail = f"They went to {winner}."
            transitions.preempt_at_checkpoint(victim, Reason.RECLAIMED, detail, actor="scheduling", data=facts)


def _report_reasons(decisions: Sequence[Decision], taken: TakenSnapshot, now: datetime) -> None:
    """Write changed reasons first, then the oldest reasons whose numbers changed."""
    changed, renumbered = [], []
    for decision in decisions:
        row = taken.rows[decision.job_id]
        if decision.reason is None:
            continue
        reported = taken.reported_positions[decision.job_id]
        if row.reason != decision.reason.value or reported is None:
            changed.append(decision)
            continue
        other_numbers = (row.reason_detail, reported) != (decision.detail, decision.position)
        if other_numbers and now - row.updated_at > REFRESH_AFTER:
            renumbered.append(decision)
    renumbered.sort(key=lambda decision: (taken.rows[decision.job_id].updated_at, decision.job_id))
    chosen = [*changed, *renumbered][:MAX_REASONS]
    known = dict(Job.objects.filter(pk__in=[each.job_id for each in chosen]).values_list("id", "waiting"))
    teams = explain.holders(taken.snapshot)
    leaves = {waiting.job_id: waiting.node for waiting in taken.snapshot.waiting}
    updates = []
    for decision in chosen:
        assert decision.reason is not None
        facts = {
            **(known.get(decision.job_id) or {}),
            **explain.facts(decision, leaves[decision.job_id], teams),
            "of": taken.lengths[taken.rows[decision.job_id].pool_id],
            "at": int(now.timestamp()),
        }
        updates.append(WaitingFor(decision.job_id, decision.reason, decision.detail, facts))
    transitions.set_waiting_reasons(updates)


def _report_unconsidered(taken: TakenSnapshot) -> None:
    """Give a reason to jobs that are too far back in their team's queue to be considered."""
    unreported = snapshots.eligible().filter(reason="").order_by("-id").values_list("id", flat=True)
    detail = "Earlier jobs of its own team are ahead of it in the same queue."
    behind = [job_id for job_id in unreported[:MAX_REASONS] if job_id not in taken.rows]
    transitions.set_waiting_reasons([WaitingFor(job_id, Reason.WAITING_FOR_CAPACITY, detail) for job_id in behind])


def _settle_waiting() -> None:
    """Apply changes that need no slots: cancel, hold, resume or expire queued jobs."""
    with transaction.atomic():
        waiting = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
            _needs_settling(), status__in=[JobStatus.QUEUED.value, JobStatus.PAUSED.value]
        )
        for job in waiting.order_by("id")[:BATCH]:
            _settle(job)


def _needs_settling() -> Q:
    """Return a cheap filter for a superset of the jobs that `_settle` would change."""
    queued, paused = Q(status=JobStatus.QUEUED.value), Q(status=JobStatus.PAUSED.value)
    return (
        Q(desired=Desired.STOP.value)
        | (queued & Q(desired=Desired.PAUSE.value) & ~Q(reason=Reason.HELD.value))
        | (queued & Q(not_before__gt=Now()) & ~Q(reason=Reason.NOT_BEFORE.value))
        | (queued & Exists(Dependency.objects.filter(job=OuterRef("pk"))))
        | (paused & Q(desired=Desired.RUN.value))
        | Q(expires_at__lte=Now())
    )


def undecided() -> QuerySet[Job]:
    """Return jobs that wait for a decision, without those whose decision named what they wait for."""
    queued, paused = Q(status=JobStatus.QUEUED.value), Q(status=JobStatus.PAUSED.value)
    named = [reason.value for reason, meaning in MEANINGS.items() if meaning.final is None]
    due = Q(act_after__isnull=True) | Q(act_after__lte=Now())
    return Job.objects.filter(
        ((queued | paused) & (Q(desired=Desired.STOP.value) | Q(expires_at__lte=Now())))
        | (queued & Q(desired=Desired.PAUSE.value) & ~Q(reason=Reason.HELD.value))
        | (queued & Q(desired=Desired.RUN.value) & due & ~Q(reason__in=named))
        | (paused & Q(desired=Desired.RUN.value))
    )


def _settle(job: Job) -> None:
    now = clock.database_now()
    paused = job.status == JobStatus.PAUSED.value
    if job.desired == Desired.STOP.value:
        transitions.move(job, JobStatus.CANCELLED, reason=Reason.STOPPED_BY_USER, actor="scheduling")
    elif job.expires_at is not None and job.expires_at <= now:
        missed = job.deadline is not None and job.deadline <= now
        reason = Reason.DEADLINE_MISSED if missed else Reason.WAITED_TOO_LONG
        transitions.move(job, JobStatus.EXPIRED, reason=reason, actor="scheduling")
    elif paused and job.desired == Desired.RUN.value:
        transitions.move(job, JobStatus.QUEUED, actor="scheduling")
    elif not paused and job.desired == Desired.PAUSE.value:
        transitions.set_waiting_reason(job, Reason.HELD, "")
    elif not paused and job.not_before is not None and job.not_before > now:
        transitions.set_waiting_reason(job, Reason.NOT_BEFORE, f"{job.not_before:%Y-%m-%d %H:%M} UTC.")
    elif not paused:
        _settle_dependencies(job)


def _settle_dependencies(job: Job) -> None:
    upstream = list(Job.objects.filter(dependents__job=job).order_by("id").values_list("id", "status"))
    lost = [job_id for job_id, status in upstream if JobStatus(status) in FINAL - {JobStatus.SUCCEEDED}]
    open_ = [job_id for job_id, status in upstream if JobStatus(status) not in FINAL]
    if lost:
        detail = f"{', '.join(lost)}."
        transitions.move(job, JobStatus.FAILED, reason=Reason.DEPENDENCY_FAILED, actor="scheduling", detail=detail)
    elif open_ and (job.reason, job.reason_detail) != (Reason.DEPENDENCY.value, f"{', '.join(open_)}."):
        transitions.set_waiting_reason(job, Reason.DEPENDENCY, f"{', '.join(open_)}.")
