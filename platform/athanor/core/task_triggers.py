"""Messages that start a worker task early. Losing one only adds latency: each task also runs periodically.

While a message waits for the worker, no second one of its task is sent: the run that it starts sees what was committed
meanwhile. A key in Valkey marks that one waits; the run removes it when it begins. After a run, the next message waits
for REST_FACTOR times as long as the run took, at most MAX_REST_MS: many small changes must not keep the worker in runs.

The only caller of Celery's `send_task`; tasks are named, so nothing here imports workers.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from athanor.core.valkey import valkey

log = logging.getLogger(__name__)

ADMIT = "athanor.admit"
DISPATCH = "athanor.dispatch"
OBSERVE = "athanor.observe"
FINALISE = "athanor.finalise"
GUARD_IDLE = "athanor.guard_idle"
PUBLISH = "athanor.publish"
DELIVER = "athanor.deliver"
ALERT = "athanor.alert"
SEND_MAILS = "athanor.send_mails"
SWEEP_STORAGE = "athanor.sweep_storage"
SWEEP_UNREFERENCED = "athanor.sweep_unreferenced"
SCRUB = "athanor.scrub"
CHECK_SIGN_ONS = "athanor.check_sign_ons"
ERASE_TEAMS = "athanor.erase_teams"
COMPACT_TELEMETRY = "athanor.fold_telemetry"
SWEEP_TELEMETRY = "athanor.sweep_telemetry"
SWEEP_RECORDS = "athanor.sweep_records"
SYNC_INVENTORY = "athanor.survey"
NODE_PREFLIGHTS = "athanor.node_preflights"
METER = "athanor.meter"
GOODPUT = "athanor.goodput"
ESTIMATE = "athanor.estimate"
SIMULATE = "athanor.simulate"
ANCHOR_AUDIT = "athanor.anchor_audit"

EXPIRES_SECONDS = 30
PENDING_SECONDS = 10  # for so long a message that was lost keeps others from being sent
MAX_REST_MS = 2000
REST_FACTOR = 3  # runs that follow each other take a quarter of the time
ADMIT_REST_FACTOR = 9  # each run looks at the whole queue: a tenth of the time


def trigger_after_commit(task: str) -> None:
    """Enqueue `task` when the current transaction commits; without one, immediately. Never raises for the broker."""
    transaction.on_commit(lambda: _send(task))


@contextmanager
def run_of(task: str) -> Iterator[None]:
    """Enclose a run of `task`: what is committed from now on needs another message, which waits for its turn."""
    began = time.monotonic()
    try:
        valkey().delete(_key("pending", task))
    except (RedisError, OSError) as error:
        log.warning("the broker is not reachable; %s may be left to its periodic run: %s", task, error)
    try:
        yield
    finally:
        factor = ADMIT_REST_FACTOR if task == ADMIT else REST_FACTOR
        rest = int((time.monotonic() - began) * factor * 1000)
        with suppress(RedisError, OSError):
            valkey().set(_key("rest", task), 1, px=min(max(rest, 1), MAX_REST_MS))


def _send(task: str) -> None:
    try:
        if valkey().set(_key("pending", task), 1, nx=True, ex=PENDING_SECONDS):
            rest = max(valkey().pttl(_key("rest", task)), 0) / 1000  # negative: there is none
            current_app.send_task(task, retry=False, expires=EXPIRES_SECONDS, countdown=rest or None)
    except (OperationalError, RedisError, OSError) as error:
        log.warning("the broker is not reachable; %s is left to its periodic run: %s", task, error)


def _key(what: str, task: str) -> str:
    return f"athanor:{what}:{task}"
