"""Messages that start a worker task early. Losing one only adds latency: each task also runs periodically.

The only caller of Celery's `send_task`; tasks are named, so nothing here imports workers.
"""

import logging

from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

log = logging.getLogger(__name__)

ADMIT = "athanor.admit"
DISPATCH = "athanor.dispatch"
OBSERVE = "athanor.observe"
FINALISE = "athanor.finalise"
PUBLISH = "athanor.publish"
DELIVER = "athanor.deliver"
SWEEP_STORAGE = "athanor.sweep_storage"
SWEEP_UNREFERENCED = "athanor.sweep_unreferenced"
CHECK_SIGN_ONS = "athanor.check_sign_ons"
ERASE_TEAMS = "athanor.erase_teams"
COMPACT_TELEMETRY = "athanor.fold_telemetry"
SWEEP_TELEMETRY = "athanor.sweep_telemetry"
SYNC_INVENTORY = "athanor.survey"
METER = "athanor.meter"
ESTIMATE = "athanor.estimate"
SIMULATE = "athanor.simulate"
ANCHOR_AUDIT = "athanor.anchor_audit"


def trigger_after_commit(task: str) -> None:
    """Enqueue `task` when the current transaction commits; without one, immediately. Never raises for the broker."""
    transaction.on_commit(lambda: _send(task))


def _send(task: str) -> None:
    try:
        current_app.send_task(task, retry=False, expires=30)
    except (OperationalError, OSError) as error:
        log.warning("the broker is not reachable; %s is left to its periodic run: %s", task, error)
