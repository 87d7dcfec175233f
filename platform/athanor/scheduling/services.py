"""Takes a snapshot under the one lock of admission, lets the policy decide, and carries out what it says."""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from athanor.budgets import ledger
from athanor.clusters.models import Pool
from athanor.jobs import transitions
from athanor.jobs.models import Dependency, Job
from athanor.jobs.reasons import MEANINGS, Reason
from athanor.jobs.states import FINAL, Desired, JobStatus
from athanor.jobs.transitions import WaitingFor
from athanor.quotas.services import locked_root
from athanor.scheduling import estimates, explain, policy, record, snapshots
from athanor.scheduling.snapshot import Decision, Snapshot
from athanor.scheduling.snapshots import Taken

BATCH = 1000
MOST_CYCLES = 50  # of one run: whoever comes next goes on
TOLD_ANEW_AFTER = timedelta(seconds=5)  # numbers in what a job is told; another reason is told at once
MOST_TOLD = 300  # of one cycle


def admit() -> int:
    """Admit what may start now, and say of the rest why it waits. Returns how many were admitted."""
    _settle_waiting()
    admitted = 0
    for _ in range(MOST_CYCLES):
        started, done = _cycle()
        admitted += started
        if done or not started:
            break
    record.sweep()
    return admitted


def snapshot_now() -> Snapshot:
    """What admission would decide on now, without its lock: for who asks what if."""
    return snapshots.take(timezone.now()).snapshot


def _cycle() -> tuple[int, bool]:
    """One decision, carried out. How many were admitted, and whether no other job could be in the next one."""
    with transaction.atomic():
        # One admission at a time: whoever holds this lock sees every admission, quota and budget before it.
        locked_root()
        list(Pool.objects.select_for_update(no_key=True).order_by("id").values_list("id"))
        began, now = time.monotonic(), timezone.now()
        taken = snapshots.take(now)
        decisions = policy.decide(taken.snapshot)
        took = time.monotonic() - began
        startable = [decision.job_id for decision in decisions if decision.admitted]
        cycle = None
        if startable or any(decision.victims for decision in decisions):
            cycle = record.keep(taken.snapshot, decisions, took).pk
        _reclaim(decisions, taken, cycle)
        _tell(decisions, taken, now)
        if not taken.complete:
            _tell_the_rest(taken)
        started = _start(startable, cycle)
    return started, taken.complete or _is_full(taken, set(startable))


def _is_full(taken: Taken, started: set[str]) -> bool:
    """Whether nothing is left of any pool that is waited for."""
    left = {pool.id: pool.slots for pool in taken.snapshot.pools if pool.id in taken.lengths}
    for held in taken.snapshot.holdings:
        if held.pool in left:
            left[held.pool] -= held.slots
    for job in taken.snapshot.waiting:
        if job.job_id in started:
            left[job.pool] -= job.slots
    return all(slots <= 0 for slots in left.values())


def _start(job_ids: Sequence[str], cycle: int | None) -> int:
    """A job that a user's request holds just now starts in the next cycle."""
    free = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
        pk__in=job_ids, status=JobStatus.QUEUED.value, desired=Desired.RUN.value
    )
    jobs = list(free.defer("spec", "resolved_spec").order_by("id"))
    if jobs:
        transitions.admit_all(jobs, actor="scheduling", data={"decision": cycle})
        estimates.note_starts(jobs, timezone.now())
        ledger.reserve(jobs, timezone.now())  # last: who ends a job locks it before its budgets
    return len(jobs)


def _reclaim(decisions: Sequence[Decision], taken: Taken, cycle: int | None) -> None:
    """Ask the victims for a checkpoint and their slots."""
    for decision in decisions:
        if not decision.victims:
            continue
        claimant = taken.rows[decision.job_id]
        victims = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(pk__in=decision.victims)
        for victim in victims.select_related("team").order_by("id"):
            same_team = victim.team_id == claimant.team_id
            whose = f"{claimant.id} of higher priority" if same_team else "a job of a team that is within its quota"
            facts = {"decision": cycle, **({"for": claimant.id} if same_team else {})}
            detail = f"They went to {whose}."
            transitions.give_back(victim, Reason.RECLAIMED, detail, actor="scheduling", data=facts)


def _tell(decisions: Sequence[Decision], taken: Taken, now: datetime) -> None:
    """Write what has changed: other reasons first, then the oldest of what is told with other numbers."""
    news, numbers = [], []
    for decision in decisions:
        row = taken.rows[decision.job_id]
        if decision.reason is None:
            continue
        told = taken.told_positions[decision.job_id]
        if row.reason != decision.reason.value or told is None:
            news.append(decision)
            continue
        other_numbers = (row.reason_detail, told) != (decision.detail, decision.position)
        if other_numbers and now - row.updated_at > TOLD_ANEW_AFTER:
            numbers.append(decision)
    numbers.sort(key=lambda decision: (taken.rows[decision.job_id].updated_at, decision.job_id))
    chosen = [*news, *numbers][:MOST_TOLD]
    known = dict(Job.objects.filter(pk__in=[each.job_id for each in chosen]).values_list("id", "waiting"))
    teams = explain.holders(taken.snapshot)
    leaves = {waiting.job_id: waiting.node for waiting in taken.snapshot.waiting}
    telling = []
    for decision in chosen:
        assert decision.reason is not None
        facts = {
            **(known.get(decision.job_id) or {}),
            **explain.facts(decision, leaves[decision.job_id], teams),
            "of": taken.lengths[taken.rows[decision.job_id].pool_id],
            "at": int(now.timestamp()),
        }
        telling.append(WaitingFor(decision.job_id, decision.reason, decision.detail, facts))
    transitions.set_waiting_reasons(telling)


def _tell_the_rest(taken: Taken) -> None:
    """Those so far back in their team's queue that admission does not look at them yet."""
    untold = snapshots.eligible().filter(reason="").order_by("-id").values_list("id", flat=True)
    detail = "Earlier jobs of its own team are before it in the same queue."
    behind = [job_id for job_id in untold[:MOST_TOLD] if job_id not in taken.rows]
    transitions.set_waiting_reasons([WaitingFor(job_id, Reason.WAITING_FOR_CAPACITY, detail) for job_id in behind])


def _settle_waiting() -> None:
    """What needs no slots: jobs that wait end, are held, come back or expire as their users and limits say."""
    with transaction.atomic():
        waiting = Job.objects.select_for_update(no_key=True, skip_locked=True).filter(
            _needs_settling(), status__in=[JobStatus.QUEUED.value, JobStatus.PAUSED.value]
        )
        for job in waiting.order_by("id")[:BATCH]:
            _settle(job)


def _needs_settling() -> Q:
    """A cheap superset of the waiting jobs that `_settle` would change."""
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
    """Jobs that wait for a decision, and not for what a decision has named."""
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
    paused = job.status == JobStatus.PAUSED.value
    if job.desired == Desired.STOP.value:
        transitions.move(job, JobStatus.CANCELLED, reason=Reason.STOPPED_BY_USER, actor="scheduling")
    elif job.expires_at is not None and job.expires_at <= timezone.now():
        missed = job.deadline is not None and job.deadline <= timezone.now()
        reason = Reason.DEADLINE_MISSED if missed else Reason.WAITED_TOO_LONG
        transitions.move(job, JobStatus.EXPIRED, reason=reason, actor="scheduling")
    elif paused and job.desired == Desired.RUN.value:
        transitions.move(job, JobStatus.QUEUED, actor="scheduling")
    elif not paused and job.desired == Desired.PAUSE.value:
        transitions.set_waiting_reason(job, Reason.HELD, "")
    elif not paused and job.not_before is not None and job.not_before > timezone.now():
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
