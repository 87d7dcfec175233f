"""The backlog and the last runs of every reconciler."""

import json
import logging
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
from redis.exceptions import RedisError

from athanor.accounts import failures, idempotency, sign_on_checks
from athanor.alerts import mailing
from athanor.artifacts import deletions, imports, scrub, unreferenced
from athanor.artifacts.services import retired_checkpoints
from athanor.budgets import goodput_hours, meter
from athanor.compliance import erasure
from athanor.compliance import retention as records
from athanor.core import clock, metrics, task_triggers
from athanor.core.valkey import valkey
from athanor.dispatch import finalise, node_preflights, observe, stop, submit
from athanor.fleet import inventory_sync
from athanor.jobs import event_feed
from athanor.jobs.models import Job
from athanor.jobs.states import FINAL, JobStatus
from athanor.reconcilers.models import ReconcilerFailure
from athanor.reconcilers.registry import IDLE_SECONDS, RECONCILERS, Reconciler
from athanor.scheduling import services as scheduling
from athanor.scheduling import simulations
from athanor.telemetry import compaction, retention
from athanor.webhooks import delivering

FRESH_FOR = timedelta(seconds=4)  # an attempt observed more recently is not due
LATE_AFTER_RUNS = 5  # a reconciler that has missed as many runs is late
RUNS_KEY = "athanor:reconciler-runs"  # a hash in Valkey: the last run of each task, as JSON
AT_WORK = [status.value for status in JobStatus if status not in {*FINAL, JobStatus.PAUSED}]

log = logging.getLogger(__name__)


class Due(NamedTuple):
    """Rows that wait for a reconciler, and the expression of the time since when."""

    rows: QuerySet[Any]
    since: Any


@dataclass(frozen=True)
class State:
    """State of one reconciler.

    `oldest_due_seconds`: None when nothing is due. `ran_at`: None if it never ran, or since Valkey lost its data.
    `late`: it has missed LATE_AFTER_RUNS runs, at the longer interval of an idle platform if nothing waits.
    `rows_failing` and `rows_given_up` count single rows (accounts/failures.py).
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
    task_triggers.GUARD_IDLE: lambda: [],  # no row waits for it: each run looks at all running jobs
    task_triggers.PUBLISH: lambda: [Due(event_feed.unnumbered(), F("time"))],
    task_triggers.DELIVER: lambda: [Due(delivering.due_now(), F("next_try_at"))],
    task_triggers.ALERT: lambda: [],  # no row waits for an evaluation: each run measures everything
    task_triggers.SEND_MAILS: lambda: [
        Due(mailing.to_gather(), F("mail_at")),
        Due(mailing.due_now(), F("next_try_at")),
    ],
    task_triggers.METER: lambda: [
        Due(meter.due(timezone.now()), F("due_at")),
        Due(meter.unmetered(), F("launched_at")),
    ],
    task_triggers.GOODPUT: lambda: [Due(goodput_hours.due(timezone.now()), F("due_at"))],
    task_triggers.SWEEP_STORAGE: lambda: [
        Due(retired_checkpoints(), F("retired_at")),
        Due(deletions.due(), F("purge_after")),
        Due(imports.unfinished(), F("created_at") + imports.SWEPT_AFTER),
    ],
    task_triggers.SWEEP_UNREFERENCED: lambda: [Due(unreferenced.due(), F("next_scan_at"))],
    task_triggers.SCRUB: lambda: [Due(scrub.due(), Coalesce(F("verified_at") + scrub.VERIFY_AGAIN, "created_at"))],
    task_triggers.ERASE_TEAMS: lambda: [Due(erasure.due(), F("purge_after"))],
    task_triggers.CHECK_SIGN_ONS: lambda: [Due(sign_on_checks.due(), F("next_check_at"))],
    task_triggers.COMPACT_TELEMETRY: lambda: [
        Due(rows, F("attempt__ended_at")) for rows in compaction.unflushed_chunks()
    ],
    task_triggers.SWEEP_TELEMETRY: lambda: [
        *(Due(rows, F(ended)) for rows, ended in retention.overdue()),
        Due(idempotency.expired(), F("created_at") + idempotency.STORED_FOR),
    ],
    task_triggers.SWEEP_RECORDS: lambda: [Due(rule.rows, F(rule.since)) for rule in records.overdue()],
    task_triggers.ANCHOR_AUDIT: lambda: [],  # no row waits for an anchor
    task_triggers.SIMULATE: lambda: [Due(simulations.due(), F("created_at"))],
    task_triggers.NODE_PREFLIGHTS: lambda: [Due(node_preflights.live(), F("created_at"))],
    task_triggers.SYNC_INVENTORY: lambda: [Due(inventory_sync.due(), Least("nodes_at", "probed_at"))],
}


class Run(NamedTuple):
    """The last run of a reconciler that succeeded."""

    ran_at: datetime
    seconds: float


def states() -> list[State]:
    """Return the state of every reconciler, in the order of RECONCILERS."""
    runs, idle = _runs(), is_idle()
    failed = {failure.task: failure for failure in ReconcilerFailure.objects.all()}
    rows = failures.counts()
    return [
        _state(each, runs.get(each.task), failed.get(each.task), rows.get(each.task, (0, 0)), idle)
        for each in RECONCILERS
    ]


def is_idle() -> bool:
    """Return whether nothing needs a reconciler within IDLE_SECONDS: no job, event, delivery, mail, meter, simulation
    or preflight of a node."""
    return not (
        Job.objects.filter(status__in=AT_WORK).exists()
        or event_feed.unnumbered().exists()
        or delivering.due_now().exists()
        or mailing.to_gather().exists()
        or mailing.due_now().exists()
        or meter.due(timezone.now()).exists()
        or simulations.due().exists()
        or node_preflights.live().exists()
    )


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
        metrics.RECONCILER_ERRORS.labels(task).inc()
        with suppress(DatabaseError):  # the database may be what failed
            row = ReconcilerFailure(task=task, failed_at=Now(), error=f"{type(error).__name__}: {error}"[:1000])
            ReconcilerFailure.objects.bulk_create(
                [row], update_conflicts=True, unique_fields=["task"], update_fields=["failed_at", "error"]
            )
        raise
    seconds = time.monotonic() - began
    metrics.RECONCILER_SECONDS.labels(task).observe(seconds)
    run = {"task": task, "ran_at": timezone.now().isoformat(), "seconds": seconds}
    try:
        valkey().hset(RUNS_KEY, task, json.dumps(run))
    except (RedisError, OSError) as error:
        log.warning("the run of %s could not be recorded: %s", task, error)


def _runs() -> dict[str, Run]:
    try:
        found = valkey().hgetall(RUNS_KEY)
    except (RedisError, OSError) as error:
        log.warning("the last runs of reconcilers are not known: %s", error)
        return {}
    known = [json.loads(run) for run in found.values()]
    return {run["task"]: Run(datetime.fromisoformat(run["ran_at"]), run["seconds"]) for run in known}


def _last_migrated_at() -> datetime:
    """Return when the newest migration was applied; a reconciler that never ran counts from then."""
    applied: datetime = MigrationRecorder.Migration.objects.latest("applied").applied
    return applied


def _state(
    reconciler: Reconciler, run: Run | None, failure: ReconcilerFailure | None, failed: tuple[int, int], idle: bool
) -> State:
    interval = max(reconciler.seconds, IDLE_SECONDS) if idle else reconciler.seconds
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
        failed_at=failure.failed_at if failure else None,
        error=failure.error if failure else "",
        late=(now - (ran_at or _last_migrated_at())).total_seconds() > LATE_AFTER_RUNS * interval,
        rows_failing=failed[0],
        rows_given_up=failed[1],
    )
