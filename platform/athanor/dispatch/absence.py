"""Decide when an attempt that its backend no longer lists counts as absent. A wrong decision starts the job twice.

An absence counts only when it was observed more than once and for some time, because a listing may be outdated or
temporarily empty. If several attempts are missing from one listing, the backend has more likely lost its state than
its jobs. An attempt whose agent has recently reported is alive, whatever a listing says.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce, Now

from athanor.accounts.failures import run_isolated
from athanor.core import task_triggers
from athanor.dispatch.abandon import abandon_job_of
from athanor.dispatch.services import locked
from athanor.jobs import transitions
from athanor.jobs.models import Attempt
from athanor.jobs.states import AttemptStatus
from athanor.telemetry import selectors as telemetry

ABSENCES_TO_BELIEVE = 2
ABSENCES_TO_BELIEVE_OF_ALL = 10
ABSENT_FOR = timedelta(seconds=3)
HEARD_WITHIN = timedelta(seconds=15)  # three heartbeats
BATCH = 500


@dataclass
class Tally:
    """Of one sweep over all live attempts of a cluster."""

    seen: int = 0
    absent: int = 0

    @property
    def needed(self) -> int:
        """How often an absence must have been seen, after such a sweep."""
        return ABSENCES_TO_BELIEVE_OF_ALL if self.absent > 1 and not self.seen else ABSENCES_TO_BELIEVE


def count(absent: Collection[str]) -> None:
    """Count one more observation in which these attempts were absent."""
    Attempt.objects.filter(pk__in=absent).update(
        absent_count=F("absent_count") + 1, absent_since=Coalesce("absent_since", Now()), observed_at=Now()
    )


def forget(present: Collection[str]) -> None:
    """Of those that were absent before and are there after all."""
    Attempt.objects.filter(pk__in=present).update(absent_count=0, absent_since=None, observed_at=Now())


def end_believed(attempts: QuerySet[Attempt], tally: Tally) -> None:
    """End those of a cluster's live attempts that are truly gone."""
    if not tally.absent:
        return
    gone = Q(absent_count__gte=tally.needed, absent_since__lte=Now() - ABSENT_FOR)
    after = ""
    while batch := list(attempts.filter(gone, pk__gt=after).order_by("pk").values_list("pk", flat=True)[:BATCH]):
        after = batch[-1]
        silence = telemetry.silence(batch)
        for pk in batch:
            alive = pk in silence and silence[pk] < HEARD_WITHIN
            run_isolated(
                task_triggers.OBSERVE, f"ending attempt {pk}, which is absent",
                partial(_end, pk, tally.needed, alive=alive),
                give_up=partial(abandon_job_of, pk),
            )  # fmt: skip


def _end(pk: str, needed: int, *, alive: bool) -> None:
    with locked(pk) as (_, attempt):
        over = attempt.end_report is not None  # it was heard because it said goodbye
        if attempt.status != AttemptStatus.ENDED.value and attempt.absent_count >= needed and (over or not alive):
            transitions.move_attempt(attempt, AttemptStatus.ENDED)
