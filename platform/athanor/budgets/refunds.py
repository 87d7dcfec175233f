"""Refunds of work that infrastructure faults lost.

Work since the last durable checkpoint (or since the launch) is repeated, so it is recorded separately and returned to
the budgets that paid for it, in the periods in which they did.
"""

from collections import defaultdict
from datetime import datetime

from django.db.models import Sum
from django.utils import timezone

from athanor.budgets import meter, tariff, usage
from athanor.budgets.ledger import Book
from athanor.budgets.models import Budget, Transfer
from athanor.budgets.periods import moment_of, pieces, seconds_of
from athanor.budgets.prices import Tariffs
from athanor.jobs.models import Attempt, Job


def refund_lost_work(attempt: Attempt, job: Job, saved_at: datetime | None) -> None:
    """Refund what an ended attempt lost to an infrastructure fault. Idempotent.

    `saved_at`: when it last saved a checkpoint. The caller has locked the job and is in the transaction that ends the
    attempt.
    """
    row = meter.close(attempt)
    if row is None or row.fault_slot_seconds:
        return
    start = seconds_of(max(saved_at, row.began_at)) if saved_at else seconds_of(row.began_at)
    end = seconds_of(row.metered_until)
    if start >= end:
        return
    prices = Tariffs([row.job.pool], start, end).price(job.pool_id)
    lost: dict[int, int] = defaultdict(int)
    paid = _paid(attempt)
    book = Book(paid, [job.id], timezone.now())
    hours = []
    rest = 0
    for begins, ends in pieces(start, end):
        slot_seconds = row.slots * (ends - begins)
        cost, rest = tariff.cost_with_rest(prices, row.slots, begins, ends, rest)
        for pk, period in book.periods.items():
            if period.start <= moment_of(begins) < period.end:
                amount = slot_seconds if period.budget.unit == Budget.Unit.SLOT_HOURS else cost
                amount = min(amount, paid[pk] - lost[pk])
                lost[pk] += amount
                book.refund(pk, job, attempt.id, amount, moment_of(begins))
        lost_cost = min(cost, row.cost - row.fault_cost)  # rounding may make a part dearer than what was counted
        row.fault_slot_seconds += slot_seconds
        row.fault_cost += lost_cost
        facts = {"fault_slot_seconds": slot_seconds, "fault_cost": lost_cost}
        hours.append((meter.where(job, moment_of(begins)), facts))
    book.write()
    row.save(update_fields=["fault_slot_seconds", "fault_cost"])
    usage.add(hours)


def _paid(attempt: Attempt) -> dict[int, int]:
    """Return what the attempt was charged, by period id."""
    rows = Transfer.objects.filter(attempt_id=attempt.id, credit=Transfer.Account.SPENT)
    return dict(rows.values_list("period").annotate(total=Sum("amount")).order_by())
