"""The only writer of observed state: asks each backend about its live attempts, and applies the answers.

One worker at a time sweeps a cluster, in batches, so that memory does not grow with the number of attempts. What an
answer does not change is not written.
"""

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce, Greatest, Now
from django.utils import timezone

from athanor.accounts.failures import run_isolated
from athanor.backends.base import Backend, BackendUnavailable, Handle, Observation, Phase, Presence
from athanor.clusters.models import Cluster
from athanor.core import clock, leases, task_triggers
from athanor.core.leases import Lease
from athanor.dispatch import absence
from athanor.dispatch.abandon import abandon_job_of
from athanor.dispatch.recovery import REASON_OF_OBSTACLE
from athanor.dispatch.services import backend_of, locked, nodes_without_agent
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import MEANINGS, Reason, Retry
from athanor.jobs.states import AttemptStatus, Health, JobStatus
from athanor.telemetry import selectors as telemetry

log = logging.getLogger(__name__)

LEASE_SECONDS = 20.0  # renewed with each batch: longer than a backend takes for one call
CLUSTERS = 50
BATCH = 2000
STARTUP_LIMIT = timedelta(minutes=30)
ESTIMATE_MOVES_BY = timedelta(minutes=1)  # less is not worth a write
LIMITED = frozenset({JobStatus.STARTING.value, JobStatus.RUNNING.value})


class Live(NamedTuple):
    """As much of a live attempt and its job as it takes to see whether an answer changes anything."""

    id: str
    backend_name: str
    backend_id: str
    status: str
    native_state: str
    native_reason: str
    phase: str
    cause: str
    explanation: str
    native_restarts: int
    native_nodes: list[str]
    lost_nodes: list[str]
    absent_count: int
    launched_at: datetime | None
    expected_start_at: datetime | None
    queued_at: datetime | None
    job_id: str
    job_status: str
    job_health: str
    time_limit_seconds: int
    wait_limit_seconds: int | None

    @property
    def handle(self) -> Handle:
        """Return the handle by which its backend knows the attempt."""
        return Handle(self.backend_name, self.backend_id)


def observe_due() -> None:
    """Observe the attempts of every cluster that has some, the longest unobserved cluster first."""
    of_cluster = observable().filter(job__pool__cluster=OuterRef("pk"))
    due = Cluster.objects.filter(Exists(of_cluster)).order_by("observed_at")
    for lease in leases.claim_each(due, seconds=LEASE_SECONDS, limit=CLUSTERS):
        run_isolated(
            task_triggers.OBSERVE, f"observing cluster {lease.pk}", partial(_sweep, lease), held=(Cluster, lease)
        )


def observable() -> QuerySet[Attempt]:
    """Live attempts, without those that nobody has submitted yet, or that a worker is submitting just now."""
    unsubmitted = Q(status=AttemptStatus.PREPARED.value) & (
        Q(job__status=JobStatus.DISPATCHING.value) | Q(lease_until__gt=Now())
    )
    return Attempt.objects.exclude(status=AttemptStatus.ENDED.value).exclude(unsubmitted)


def observe_one(attempt: Attempt) -> Presence | None:
    """Out of turn: what its cluster says of one attempt now. None: a sweep is under way. May raise BackendUnavailable.

    An absence counts as one more; it is a sweep that ends what is absent, since it alone sees the whole cluster.
    """
    of_one = observable().filter(pk=attempt.pk)
    cluster = attempt.job.pool.cluster
    for lease in leases.claim(Cluster.objects.filter(pk=cluster.pk), seconds=LEASE_SECONDS, limit=1):
        try:
            batch = _read(of_one)
            if not batch:
                return Presence.UNKNOWN  # nobody has submitted it yet
            answers = backend_of(cluster).observe([batch[0].handle])
            _apply_batch(batch, answers, absence.Tally())
            return answers[batch[0].handle].presence
        finally:
            leases.release(Cluster, lease)
    return None


def _sweep(lease: Lease) -> None:
    cluster = Cluster.objects.get(pk=lease.pk)
    backend = backend_of(cluster)
    attempts = observable().filter(job__pool__cluster=cluster)
    tally = absence.Tally()
    for batch in _batches(attempts):
        answers = _ask(backend, cluster, batch)
        if not leases.renew(Cluster, lease, seconds=LEASE_SECONDS):
            return  # this worker was paused for too long: another worker has newer facts
        _apply_batch(batch, answers, tally)
    absence.end_believed(attempts, tally)
    Cluster.objects.filter(pk=lease.pk, lease_token=lease.token).update(observed_at=Now())
    leases.release(Cluster, lease)


def _batches(attempts: QuerySet[Attempt]) -> Iterator[list[Live]]:
    """First the next ids, from the index of live attempts, then what they name: one query for both would sort all that
    are left, for each batch."""
    ids = Attempt.objects.exclude(status=AttemptStatus.ENDED.value).order_by("id").values_list("id", flat=True)
    after = ""
    while page := list(ids.filter(id__gt=after)[:BATCH]):
        after = page[-1]
        if batch := _read(attempts.filter(id__in=page)):
            yield batch


def _read(attempts: QuerySet[Attempt]) -> list[Live]:
    rows = attempts.values_list(
        "id", "backend_name", "backend_id", "status", "native_state", "native_reason", "phase", "cause", "explanation",
        "native_restarts", "native_nodes", "lost_nodes", "absent_count", "launched_at", "expected_start_at",
        "job__queued_at", "job_id", "job__status", "job__health", F("job__resolved_spec__time_limit_seconds"),
        F("job__resolved_spec__wait_limit_seconds"),
    )  # fmt: skip
    return [Live(*row) for row in rows]


def _ask(backend: Backend, cluster: Cluster, batch: list[Live]) -> Mapping[Handle, Observation]:
    handles = [live.handle for live in batch]
    try:
        return backend.observe(handles)
    except BackendUnavailable as error:
        log.warning("cluster %s is observed later: %s", cluster, error)
        return {handle: Observation(Presence.UNKNOWN, native_reason=str(error)) for handle in handles}


def _apply_batch(batch: list[Live], answers: Mapping[Handle, Observation], tally: absence.Tally) -> None:
    present, absent, back = [], [], []
    for live in batch:
        answer = answers[live.handle]
        if answer.presence is Presence.ABSENT:
            absent.append(live.id)
        elif answer.presence is not Presence.UNKNOWN:
            present.append((live, answer))
            if live.absent_count:
                back.append(live.id)
    tally.seen += len(present)
    tally.absent += len(absent)
    if absent:
        absence.count(absent)
    if back:
        absence.forget(back)
    _apply_present(present)


def _apply_present(present: list[tuple[Live, Observation]]) -> None:
    """Write what is new of attempts that the backend knows: facts in bulk, moves one by one under their locks."""
    silence = telemetry.silence([live.id for live, _ in present])
    starting = [live.id for live, _ in present if live.status == AttemptStatus.SUBMITTED.value]
    trained = telemetry.trained_among(starting) if starting else frozenset()
    natives: dict[NativeFacts, list[str]] = {}
    healths: dict[Health, list[str]] = {}
    for live, answer in present:
        said = _said(answer)
        if answer.native_state and said != _known(live):
            natives.setdefault(said, []).append(live.id)
        health = Health.UNKNOWN if silence.get(live.id, timedelta()) > telemetry.SILENT_AFTER else Health.OK
        if answer.presence is Presence.PRESENT and live.job_health != health.value:
            healths.setdefault(health, []).append(live.job_id)
    for (native_state, native_reason, phase, cause, explanation, restarts), ids in natives.items():
        Attempt.objects.filter(pk__in=ids).update(
            native_state=native_state, native_reason=native_reason, phase=phase, cause=cause, explanation=explanation,
            native_restarts=restarts, observed_at=Now(),
        )  # fmt: skip
    _write_places(present)
    for health, ids in healths.items():
        Job.objects.filter(pk__in=ids).update(health=health.value, updated_at=Now())
    now = clock.database_now()
    for live, answer in present:
        if _moves(live, answer, live.id in trained, now):
            run_isolated(
                task_triggers.OBSERVE, f"observing attempt {live.id}",
                partial(_move, live, answer, has_trained=live.id in trained), give_up=partial(abandon_job_of, live.id),
            )  # fmt: skip


# native_state, native_reason, phase, cause, explanation, native_restarts of an attempt.
NativeFacts = tuple[str, str, str, str, str, int]


def _said(answer: Observation) -> NativeFacts:
    return (
        answer.native_state, answer.native_reason, answer.phase.value if answer.phase else "",
        answer.cause.value if answer.cause else "", answer.explanation, answer.restarts,
    )  # fmt: skip


def _known(live: Live) -> NativeFacts:
    return (
        live.native_state, live.native_reason, live.phase, live.cause, live.explanation, live.native_restarts
    )  # fmt: skip


def _write_places(present: list[tuple[Live, Observation]]) -> None:
    """Write when and where they were launched or will be, by our clock, from durations that the backend reported."""
    launched: dict[float | None, list[str]] = {}
    for live, answer in present:
        if live.launched_at is None and _was_launched(live, answer):
            seconds = None if answer.running_seconds is None else float(round(answer.running_seconds))
            launched.setdefault(seconds, []).append(live.id)
        if answer.nodes and list(answer.nodes) != live.native_nodes:
            lost = set(live.lost_nodes)
            if answer.phase is Phase.RUNNING:  # one that ends has fewer and fewer nodes
                lost = (lost | set(live.native_nodes)) - set(answer.nodes)
            Attempt.objects.filter(pk=live.id).update(native_nodes=list(answer.nodes), lost_nodes=sorted(lost))
        if answer.phase is Phase.PENDING and answer.starts_in_seconds is not None:
            expected = timezone.now() + timedelta(seconds=answer.starts_in_seconds)
            if live.expected_start_at is None or abs(expected - live.expected_start_at) > ESTIMATE_MOVES_BY:
                Attempt.objects.filter(pk=live.id).update(expected_start_at=expected)
    for seconds, ids in launched.items():
        submitted = Coalesce("submitted_at", "created_at")
        began = submitted if seconds is None else Greatest(Now() - timedelta(seconds=seconds), submitted)
        Attempt.objects.filter(pk__in=ids, launched_at__isnull=True).update(launched_at=began, expected_start_at=None)


def _was_launched(live: Live, answer: Observation) -> bool:
    """Return whether its processes could start: one that waited for nodes until it was ended used none."""
    if answer.phase in (Phase.STARTING, Phase.RUNNING):
        return True
    is_known = answer.running_seconds is not None or answer.exit_status is not None
    return answer.phase is not Phase.PENDING and bool(is_known or answer.nodes or live.native_nodes)


def _moves(live: Live, answer: Observation, has_trained: bool, now: datetime) -> bool:
    """Whether `_move` might have anything to do."""
    return (
        answer.presence is Presence.FINISHED
        or live.status == AttemptStatus.PREPARED.value
        or has_trained
        or (live.job_status == JobStatus.STARTING.value and live.status == AttemptStatus.RUNNING.value)
        or (live.job_status in LIMITED and _overdue(live, now) is not None)
        or (answer.gives_up is not None and _waits_to_start(live.job_status, live.status))
    )


def _waits_to_start(job_status: str, attempt_status: str) -> bool:
    return job_status == JobStatus.STARTING.value and attempt_status == AttemptStatus.SUBMITTED.value


def _move(live: Live, answer: Observation, *, has_trained: bool) -> None:
    with locked(live.id) as (job, attempt):
        if attempt.status != live.status:
            return  # somebody was faster; the next sweep sees what there is then
        if answer.presence is Presence.FINISHED:
            attempt.exit_status = answer.exit_status
            transitions.move_attempt(attempt, AttemptStatus.ENDED)
            return
        if attempt.status == AttemptStatus.PREPARED.value:  # its worker was killed before it could say so
            transitions.move_attempt(attempt, AttemptStatus.SUBMITTED)
        if attempt.status == AttemptStatus.SUBMITTED.value and has_trained:
            transitions.move_attempt(attempt, AttemptStatus.RUNNING)
        if job.status == JobStatus.STARTING.value and attempt.status == AttemptStatus.RUNNING.value:
            transitions.move(job, JobStatus.RUNNING, actor="dispatch", data={"attempt": attempt.id})
        overdue = _overdue(live._replace(status=attempt.status), clock.database_now())
        if overdue is not None and job.status in LIMITED:
            reason, limit = overdue
            detail = f"{int(limit.total_seconds())} seconds."
            if reason is Reason.STARTUP_TIMEOUT and (missing := nodes_without_agent(attempt)):
                detail += f" No agent has joined from {', '.join(missing)}."
            to = JobStatus.STOPPING if MEANINGS[reason].retry is Retry.NEVER else JobStatus.PAUSING
            transitions.move(job, to, reason=reason, actor="dispatch", detail=detail)
        elif answer.gives_up is not None and _waits_to_start(job.status, attempt.status):
            reason = REASON_OF_OBSTACLE[answer.gives_up]
            transitions.move(job, JobStatus.PAUSING, reason=reason, actor="dispatch", detail=answer.explanation)


def _overdue(live: Live, now: datetime) -> tuple[Reason, timedelta] | None:
    """Which limit the attempt has passed, if any. In a queue of the backend's own only waiting is limited."""
    if live.launched_at is None:
        wait = timedelta(seconds=live.wait_limit_seconds or 0)
        waited_too_long = wait and live.queued_at is not None and now - live.queued_at > wait
        return (Reason.WAITED_TOO_LONG, wait) if waited_too_long else None
    limit = timedelta(seconds=live.time_limit_seconds)
    if now - live.launched_at > limit:
        return Reason.DEADLINE, limit
    if live.status != AttemptStatus.RUNNING.value and now - live.launched_at > STARTUP_LIMIT:
        return Reason.STARTUP_TIMEOUT, STARTUP_LIMIT
    return None
