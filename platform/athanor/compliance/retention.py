"""Records that are only needed for a while: removed after their retention, oldest first, in small transactions.

What is stored how long, these and all others: docs/operations/retention.md. Telemetry has rules of its own
(telemetry/retention.py), as have deliveries of webhooks (webhooks/publishing.py) and answers of Idempotency-Keys
(accounts/idempotency.py). The audit trail, the cost ledger and the events of jobs are never removed here.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from allauth.usersessions.models import UserSession
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from athanor.accounts import failures
from athanor.accounts.models import SignInTries, WorkFailure
from athanor.alerts.models import Alert, Mail, Notification
from athanor.artifacts.models import PreparationClaim
from athanor.clusters.models import NodeIncident, NodePreflight
from athanor.core import ids
from athanor.jobs.states import AttemptStatus
from athanor.scheduling import stored_cycles
from athanor.scheduling.models import AdmissionCycle, Simulation, StartEstimate
from athanor.telemetry.models import Heartbeat, NodeSample, Writer

ROWS = 500  # in one transaction
A_DAY = timedelta(days=1)
OF_ENDED_ATTEMPTS = timedelta(days=7)


@dataclass(frozen=True)
class Rule:
    """Rows of one table to remove. `since`: the field from which their retention counts."""

    rows: QuerySet[Any]
    since: str


def overdue(now: datetime | None = None) -> list[Rule]:
    """Return all rows beyond their retention. Each query uses an index and costs what it finds."""
    now = now or timezone.now()
    rules = [
        Rule(Session.objects.filter(expire_date__lt=now), "expire_date"),
        Rule(SignInTries.objects.filter(window_ends__lt=now), "window_ends"),
        Rule(WorkFailure.objects.filter(last_at__lt=now - failures.STORED_FOR), "last_at"),
    ]
    of_no_session = ~Exists(Session.objects.filter(session_key=OuterRef("session_key")))
    # A session is stored at the end of the request that signs in.
    rules.append(Rule(UserSession.objects.filter(of_no_session, created_at__lt=now - A_DAY), "last_seen_at"))
    # Ids sort by time, so the index by attempt finds the old ones among those of live attempts.
    ended = Q(
        attempt_id__lt=ids.earliest_id("att", now - OF_ENDED_ATTEMPTS),
        attempt__status=AttemptStatus.ENDED.value,
        attempt__ended_at__lt=now - OF_ENDED_ATTEMPTS,
    )
    of_attempts = (Heartbeat, NodeSample, Writer, PreparationClaim)
    rules += [Rule(model._default_manager.filter(ended), "attempt__ended_at") for model in of_attempts]
    rules.append(Rule(AdmissionCycle.objects.filter(stored_cycles.is_expired(now)), "time"))
    if days := settings.ATHANOR.history_days:
        before = now - timedelta(days=days)
        rules += [
            Rule(Notification.objects.filter(pk__lt=ids.earliest_id("ntf", before)), "created_at"),
            Rule(Mail.objects.filter(pk__lt=ids.earliest_id("mail", before)), "created_at"),
            Rule(Alert.objects.filter(pk__lt=ids.earliest_id("alt", before), resolved_at__lt=before), "resolved_at"),
            Rule(Simulation.objects.filter(ended_at__lt=before), "ended_at"),
            Rule(NodeIncident.objects.filter(time__lt=before), "time"),
            Rule(NodePreflight.objects.filter(created_at__lt=before, ended_at__isnull=False), "created_at"),
            Rule(StartEstimate.objects.filter(made_at__lt=before, job__finished_at__isnull=False), "made_at"),
        ]
    return rules


def sweep(seconds: float = 30.0, now: datetime | None = None, clock: Callable[[], float] = time.monotonic) -> int:
    """Remove overdue rows for at most `seconds`. Return how many. Safe to run concurrently."""
    until, removed = clock() + seconds, 0
    for rule in overdue(now):
        while clock() < until and (count := _remove(rule)):
            removed += count
    return removed


def _remove(rule: Rule) -> int:
    with transaction.atomic():
        locked = rule.rows.order_by(rule.since).select_for_update(of=("self",), skip_locked=True)
        found = list(locked.values_list("pk", flat=True)[:ROWS])
        removed: int = rule.rows.model._default_manager.filter(pk__in=found).delete()[0]
    return removed
