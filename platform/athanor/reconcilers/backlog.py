"""The backlog and the last runs of every reconciler."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Count, F, Min, Q, QuerySet
from django.db.models.functions import Coalesce, Least, Now
from django.utils import timezone

from athanor.accounts import failures, idempotency, sign_on_checks
from athanor.artifacts import deletions, unreferenced
from athanor.artifacts.services import retired_checkpoints
from athanor.budgets import meter
from athanor.compliance import erasure
from athanor.core import clock, task_triggers
from athanor.dispatch import finalise, observe, stop, submit
from athanor.fleet import inventory_sync
from athanor.jobs import event_feed
from athanor.reconcilers.models import ReconcilerRun
from athanor.reconcilers.registry import RECONCILERS, Reconciler
from athanor.scheduling import services as scheduling
from athanor.scheduling import simulations
from athanor.telemetry import compaction, retention
from athanor.webhooks import delivering

FRESH_FOR = timedelta(seconds=4)  # an attempt observed more recently is not due
LATE_AFTER_RUNS = 5  # a reconciler that has missed as many runs is late


class Due(NamedTuple):
    """Rows that wait for a reconciler, and the expression of the time since when."""

    rows: QuerySet[Any]
    since: Any


@dataclass(frozen=True)
class State:
    """State of one reconciler.

    `oldest_due_seconds`: None when nothing is due. `late`: it has missed LATE_AFTER_RUNS runs. `rows_failing` and
    `rows_given_up` count single rows (accounts/failures.py).
    """

    reconciler: Reconciler
    rows_due: int
    oldest_due_seconds: float | None
    ran_at: datetime | None
    took_seconds: float | None
    failed_at: datetime | None
    error: str
    late: bool
    rows_failing: int
    rows_given_up: int


def _observe_due() -> list[Due]:
    swept = "job__pool__cluster__observed_at"
    unswept = Q(**{f"{swept}__isnull": True}) | Q(**{f"{swept}__lte": Now() - FRESH_FOR})
    return [Due(observe.observable().filter(unswept), Coalesce(swept, "submitted_at", "created_at"))]


def _dispatch_due() -> list[Due]:
    return [
        Due(submit.to_prepare(), F("admitted_at")),
        Due(submit.to_submit(), F("created_at")),
        Due(stop.to_stop(), F("updated_at")),
    ]


DUE: dict[str, Callable[[], list[Due]]] = {
    task_triggers.ADMIT: lambda: [Due(scheduling.undecided(), F("updated_at"))],
    task_triggers.ESTIMATE: lambda: [],  # an estimate is never late: it is of the moment it was made
    task_triggers.DISPATCH: _dispatch_due,
    task_triggers.OBSERVE: _observe_due,
    task_triggers.FINALISE: lambda: [Due(finalise.to_finalise(), F("updated_at"))],
    task_triggers.PUBLISH: lambda: [Due(event_feed.unnumbered(), F("time"))],
    task_triggers.DELIVER: lambda: [Due(delivering.due_now(), F("next_try_at"))],
    task_triggers.METER: lambda: [
        Due(meter.due(timezone.now()), F("due_at")),
        Due(meter.unmetered(), F("launched_at")),
    ],
    task_triggers.SWEEP_STORAGE: lambda: [
        Due(retired_checkpoints(), F("retired_at")),
        Due(deletions.due(), F("purge_after")),
    ],
    task_triggers.SWEEP_UNREFERENCED: lambda: [Due(unreferenced.due(), F("next_scan_at"))],
    task_triggers.ERASE_TEAMS: lambda: [Due(erasure.due(), F("purge_after"))],
    task_triggers.CHECK_SIGN_ONS: lambda: [Due(sign_on_checks.due(), F("next_check_at"))],
    task_triggers.COMPACT_TELEMETRY: lambda: [
        Due(rows, F("attempt__ended_at")) for rows in compaction.unflushed_chunks()
    ],
    task_triggers.SWEEP_TELEMETRY: lambda: [
        *(Due(rows, F(ended)) for rows, ended in retention.overdue()),
        Due(idempotency.expired(), F("created_at") + idempotency.STORED_FOR),
    ],
    task_triggers.ANCHOR_AUDIT: lambda: [],  # no row waits for an anchor
    task_triggers.SIMULATE: lambda: [Due(simulations.due(), F("created_at"))],
    task_triggers.SYNC_INVENTORY: lambda: [Due(inventory_sync.due(), Least("nodes_at", "probed_at"))],
}


def states() -> list[State]:
    """Return the state of every reconciler, in the order of RECONCILERS."""
    runs = {run.task: run for run in ReconcilerRun.objects.all()}
    failed = failures.counts()
    return [
        _state(reconciler, runs.get(reconciler.task), failed.get(reconciler.task, (0, 0))) for reconciler in RECONCILERS
    ]


@contextmanager
def recorded(task: str) -> Iterator[None]:
    """Record the duration or the error of a reconciler run.

    Raise Misconfigured instead of running with a clock that differs from the database's.
    """
    began = time.monotonic()
    try:
        clock.require_right_clock()
        yield
    except Exception as error:
        with suppress(DatabaseError):  # the database may be what failed
            _record(task, {"failed_at": Now(), "error": f"{type(error).__name__}: {error}"[:1000]})
        raise
    _record(task, {"ran_at": Now(), "seconds": time.monotonic() - began})


def _record(task: str, facts: dict[str, Any]) -> None:
    row = ReconcilerRun(task=task, **facts)
    ReconcilerRun.objects.bulk_create([row], update_conflicts=True, unique_fields=["task"], update_fields=list(facts))


def _last_migrated_at() -> datetime:
    """Return when the newest migration was applied; a reconciler that never ran counts from then."""
    applied: datetime = MigrationRecorder.Migration.objects.latest("applied").applied
    return applied


def _state(reconciler: Reconciler, run: ReconcilerRun | None, failed: tuple[int, int]) -> State:
    now = clock.database_now()
    rows, oldest = 0, None
    for due in DUE[reconciler.task]():
        found = due.rows.order_by().aggregate(count=Count("pk"), oldest=Min(due.since))
        rows += found["count"]
        if found["oldest"] is not None:
            oldest = min(oldest or now, found["oldest"])
    ran_at = run.ran_at if run else None
    return State(
        reconciler=reconciler,
        rows_due=rows,
        oldest_due_seconds=max(0.0, (now - oldest).total_seconds()) if oldest else None,
        ran_at=ran_at,
        took_seconds=run.seconds if run else None,
        failed_at=run.failed_at if run else None,
        error=run.error if run else "",
        late=(now - (ran_at or _last_migrated_at())).total_seconds() > LATE_AFTER_RUNS * reconciler.seconds,
        rows_failing=failed[0],
        rows_given_up=failed[1],
    )
