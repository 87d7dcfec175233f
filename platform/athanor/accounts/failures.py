"""Unexpected errors of background work on single rows: counted, retried after growing pauses, given up in the end.

A bug that affects one row must neither block the other rows nor be retried forever while the row's job occupies slots
and budget. Administrators see the counts beside each reconciler (reconcilers/backlog.py) and a record in the audit
trail. Errors of the database's connection are not counted: they say nothing about a row.
"""

import logging
from collections.abc import Callable
from datetime import timedelta

from django.db import DatabaseError, InterfaceError, OperationalError, transaction
from django.db.models import Count, Q
from django.db.models.functions import Now
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import WorkFailure
from athanor.core import task_triggers, tracing
from athanor.core.leases import Lease, LeasedModel
from athanor.core.logging import bound

log = logging.getLogger(__name__)

ACTOR = "platform"
FIRST_PAUSE = timedelta(seconds=15)
MAX_PAUSE = timedelta(minutes=5)
MAX_PAUSE_WITHOUT_END = timedelta(minutes=1)  # of work that is never given up, such as observing a cluster
TRACED = frozenset({task_triggers.DISPATCH, task_triggers.FINALISE})
"""Tasks that bring a job further: their work on it is in its trace. Others observe it, every few seconds."""
TRIES_BEFORE_RECORD = 3
TRIES = 12  # with the pauses between them: about 40 minutes
FAILING_WITHIN = 3 * MAX_PAUSE  # what failed earlier is not tried any more
STORED_FOR = timedelta(days=7)


def run_isolated(
    task: str,
    work: str,
    do: Callable[[], object],
    *,
    held: tuple[type[LeasedModel], Lease] | None = None,
    give_up: Callable[[str], object] | None = None,
) -> None:
    """Run `do`. Log and count an unexpected error under `task` (core/task_triggers.py) and `work`.

    `work` is a phrase that names the row. While `work` pauses after an error, return without running it. `held` is the
    row that was leased for it, whose lease then lasts as long as the pause. `give_up` is called with a sentence for
    people after TRIES errors in a row; work without it is retried at least once a minute.
    """
    before = WorkFailure.objects.filter(task=task, work=work).first()
    if before is not None and before.next_try_at > timezone.now():
        return
    ids = {} if held is None else {str(held[0]._meta.model_name): str(held[1].pk)}
    with bound(work=work, **ids), tracing.work(task, exported=task in TRACED) as measured:
        measured.error = _run(task, work, do, before, held, give_up)


def _run(
    task: str,
    work: str,
    do: Callable[[], object],
    before: WorkFailure | None,
    held: tuple[type[LeasedModel], Lease] | None,
    give_up: Callable[[str], object] | None,
) -> str:
    """Return the name of the error that `do` raised, "" if it raised none."""
    try:
        do()
    except (OperationalError, InterfaceError) as error:
        log.exception("%s failed for the database and is tried again later", work)
        return type(error).__name__
    except Exception as error:  # any bug: it is counted, and must not end the other rows' run
        log.exception("%s failed and is tried again later", work)
        try:
            longest = MAX_PAUSE_WITHOUT_END if give_up is None else MAX_PAUSE
            tries = _count(task, work, error, held, longest)
        except DatabaseError:
            log.exception("the failure of %s was not counted", work)
            return type(error).__name__
        if give_up is not None and tries >= TRIES:
            _give_up(task, work, f"{work[0].upper()}{work[1:]} failed {tries} times ({type(error).__name__}).", give_up)
        return type(error).__name__
    if before is not None:
        before.delete()
    return ""


def counts() -> dict[str, tuple[int, int]]:
    """Return, by task, how many rows fail now and how many were given up within STORED_FOR."""
    now = timezone.now()
    failing = Count("pk", filter=Q(given_up_at=None, last_at__gte=now - FAILING_WITHIN))
    given_up = Count("pk", filter=Q(given_up_at__gte=now - STORED_FOR))
    rows = WorkFailure.objects.values("task").annotate(failing=failing, given_up=given_up)
    return {row["task"]: (row["failing"], row["given_up"]) for row in rows}


def _count(
    task: str, work: str, error: Exception, held: tuple[type[LeasedModel], Lease] | None, longest: timedelta
) -> int:
    """Count one more error in a row and pause the work. Return the number of errors."""
    now = timezone.now()
    with transaction.atomic():
        row, _ = WorkFailure.objects.select_for_update(no_key=True).get_or_create(
            task=task, work=work, defaults={"first_at": now, "last_at": now, "next_try_at": now}
        )
        row.tries += 1
        pause = min(FIRST_PAUSE * 2 ** min(row.tries - 1, 10), longest)
        row.last_at, row.next_try_at = now, now + pause
        row.error = f"{type(error).__name__}: {error}"[:1000]
        row.save()
        if held is not None:
            model, lease = held
            rows = model._default_manager.filter(pk=lease.pk, lease_token=lease.token)
            rows.update(lease_until=Now() + pause)
        WorkFailure.objects.filter(last_at__lt=now - STORED_FOR).delete()
        if row.tries == TRIES_BEFORE_RECORD:
            facts = {"task": task, "tries": row.tries, "error": type(error).__name__}
            audit.record("work.failing", actor=ACTOR, target=("work", work), after=facts)
    return row.tries


def _give_up(task: str, work: str, reason: str, give_up: Callable[[str], object]) -> None:
    try:
        give_up(reason)
    except Exception:  # likewise: it is tried again with the row
        log.exception("%s could not be given up and is tried again later", work)
    else:
        WorkFailure.objects.filter(task=task, work=work).update(given_up_at=timezone.now())
