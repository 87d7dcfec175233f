"""How often jobs of a pool fail, from what its attempts held and how they ended."""

from datetime import timedelta

from django.db.models import Count, Q, Sum
from django.utils import timezone

from athanor.budgets.models import Meter
from athanor.clusters.models import Pool
from athanor.core import ids, tenancy
from athanor.jobs.reasons import MEANINGS, Retry
from trainer.contract.checkpoint_interval import slot_hours_between_failures
from trainer.contract.run import EndClass

WINDOW = timedelta(days=30)
_FAILURES = [reason.value for reason, meaning in MEANINGS.items() if meaning.retry is Retry.FREE]


def slot_hours_between_failures_of(pool: Pool) -> float:
    """Return the estimated mean slot-hours between failures of the jobs of all teams in a pool.

    It counts the attempts that were submitted within WINDOW: the slot-hours metered until now, and as failures the ends
    that their users did not cause (those with free retries), of attempts that had trained. An agent that reports that
    it was stopped has saved a checkpoint, so that nothing was lost. Restarts in place are no ends: they continue from
    shadow checkpoints, if the nodes have the memory for them.
    """
    is_failure = Q(attempt__reason__in=_FAILURES, attempt__started_at__isnull=False)
    is_unsaved = Q(attempt__end_report__isnull=True) | ~Q(attempt__end_report__end_class=EndClass.STOPPED.value)
    with tenancy.unrestricted():
        begun = Meter.objects.filter(pk__gte=ids.earliest_id("att", timezone.now() - WINDOW), job__pool=pool)
        found = begun.aggregate(
            failures=Count("pk", filter=is_failure & is_unsaved), slot_seconds=Sum("slot_seconds", default=0)
        )
    return slot_hours_between_failures(found["failures"], found["slot_seconds"] / 3600.0)
