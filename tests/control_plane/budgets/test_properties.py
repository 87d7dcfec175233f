"""For any sequence of events on jobs and budgets, the ledger balances and every second is counted once."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Sum
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from athanor.accounts.models import Team
from athanor.budgets import ledger, meter, refunds, reservations
from athanor.budgets.models import Budget, BudgetPeriod, Meter, Reservation, Transfer, UsageHour
from athanor.budgets.periods import Every, bounds, seconds_of
from athanor.clusters.models import Pool
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import HOLDING, JobStatus
from athanor.quotas import services as quotas
from tests.examples import examples

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
HOUR = 3600
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 20 * HOUR)),
        st.tuples(st.sampled_from(["admit", "launch", "finish"]), st.integers(0, 2)),
        st.tuples(st.just("fault"), st.tuples(st.integers(0, 2), st.integers(0, 2 * HOUR))),
        st.tuples(st.just("amount"), st.tuples(st.integers(0, 1), st.integers(0, 40 * HOUR))),
        st.tuples(st.just("round"), st.none()),
    ),
    min_size=4,
    max_size=25,
)


class World:
    """Three jobs, a hard budget of slot-hours and a soft one of money, and a clock."""

    def __init__(self, jobs: list[Job], team: Team) -> None:
        self.now, self.jobs, self.lowered = NOON, jobs, set()
        common = {"period": "day", "created_at": NOON - timedelta(days=1), "node": quotas.leaf_of(team)}
        self.budgets = [
            Budget.objects.create(name="hours", unit="slot_hours", amount=20 * HOUR, hard=True, **common),
            Budget.objects.create(name="money", unit="money", currency="USD", amount=10**7, **common),
        ]

    def do(self, what: str, facts: Any) -> None:
        getattr(self, what)(facts)

    def wait(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds, microseconds=seconds * 37 % 10**6)

    def admit(self, index: int) -> None:
        job = self._job(index)
        if job.status != JobStatus.QUEUED.value:
            return
        found = reservations.plan_reservations([job], self.now)
        left = {row.id: row.available for row in found.budgets if row.hard}
        if any(amount > left.get(budget, amount) for budget, amount in found.costs[job.id]):
            return
        with transaction.atomic():
            quotas.locked_root()
            ledger.reserve([job], self.now)
            transitions.move(job, JobStatus.ADMITTED, actor="test")

    def launch(self, index: int) -> None:
        job = self._job(index)
        if job.status == JobStatus.ADMITTED.value:
            with transaction.atomic():
                for to in (JobStatus.DISPATCHING, JobStatus.STARTING, JobStatus.RUNNING):
                    transitions.move(job, to, actor="test")
            number = job.attempts.count() + 1
            name = f"{job.id}-{number}"
            Attempt.objects.create(job=job, number=number, backend_name=name, status="running", launched_at=self.now)

    def finish(self, index: int) -> None:
        self._end(self._job(index), None)

    def fault(self, facts: tuple[int, int]) -> None:
        self._end(self._job(facts[0]), facts[1])

    def amount(self, facts: tuple[int, int]) -> None:
        budget = self.budgets[facts[0]]
        with transaction.atomic():
            quotas.locked_root()
            Budget.objects.filter(pk=budget.pk).update(amount=facts[1])
            budget.refresh_from_db()
            start, end = bounds(Every(budget.period), self.now)
            period = ledger.open_period(budget, seconds_of(start), seconds_of(end), self.now)
            book = ledger.Book([period.pk], [], self.now)
            if difference := budget.amount - book.periods[period.pk].amount:
                book.adjust(period.pk, difference)
                book.write()
            if difference < 0:
                self.lowered.add(period.pk)

    def round(self, _: None) -> None:
        meter.count_due(self.now)
        meter.roll_over(self.now)
        meter.count_due(self.now)

    def _job(self, index: int) -> Job:
        self.jobs[index].refresh_from_db()
        return self.jobs[index]

    def _end(self, job: Job, lost: int | None) -> None:
        attempt = job.attempts.exclude(status="ended").first()
        if attempt is None:
            return
        Attempt.objects.filter(pk=attempt.pk).update(status="ended", ended_at=self.now)
        attempt.refresh_from_db()
        with transaction.atomic():
            if lost is not None:
                refunds.refund_lost_work(attempt, job, self.now - timedelta(seconds=lost))
            transitions.move(job, JobStatus.QUEUED, reason=Reason.NODE_LOST, actor="test")

    def check(self) -> None:
        assert ledger.check(self.now) == []
        for period in BudgetPeriod.objects.filter(budget__hard=True, allowance__lt=0):
            overrun = period.transfers.filter(kind="overrun").aggregate(sum=Sum("amount", default=0))["sum"]
            assert -period.allowance <= overrun or period.pk in self.lowered, period
        holding = {job.id for job in Job.objects.filter(status__in=HOLDING)}
        assert set(Reservation.objects.values_list("job", flat=True)) <= holding
        # Every second that was metered is in the budget, charged or recorded as lost, and in the hours.
        counted = Meter.objects.aggregate(all=Sum("slot_seconds", default=0), cost=Sum("cost", default=0))
        hours = BudgetPeriod.objects.filter(budget=self.budgets[0]).aggregate(sum=Sum("spent") + Sum("lost"))
        money = BudgetPeriod.objects.filter(budget=self.budgets[1]).aggregate(sum=Sum("spent") + Sum("lost"))
        used = UsageHour.objects.aggregate(all=Sum("slot_seconds", default=0), cost=Sum("cost", default=0))
        assert counted == used
        assert (hours["sum"] or 0, money["sum"] or 0) == (counted["all"], counted["cost"])
        for row in Meter.objects.select_related("attempt"):
            end = min(self.now, row.attempt.ended_at or self.now)
            assert row.slot_seconds == row.slots * int((row.metered_until - row.began_at).total_seconds())
            if row.closed:
                assert seconds_of(row.metered_until) == max(seconds_of(end), seconds_of(row.began_at))


@pytest.mark.django_db
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_books_balance_whatever_happens(steps: list, submit: Callable[..., Job], team: Team) -> None:
    with transaction.atomic():
        Pool.objects.update(price_per_slot_hour="0.7123")
        jobs = [
            submit(time_limit_seconds=limit, resources={"cluster": "fake", "processes_per_node": slots})
            for limit, slots in ((HOUR, 1), (9 * HOUR, 3), (24 * HOUR, 2))
        ]
        world = World(jobs, team)
        for what, facts in steps:
            world.do(what, facts)
            world.check()
        transaction.set_rollback(True)


@pytest.mark.django_db
def test_a_meter_that_dies_between_its_steps_counts_nothing_twice(
    submit: Callable[..., Job], team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle that is killed after any of its writes has written nothing; the next cycle counts everything once."""
    world = World([submit(time_limit_seconds=HOUR)], team)
    for what, facts in (("admit", 0), ("launch", 0), ("round", None), ("wait", 50)):
        world.do(what, facts)
    for place in ("write", "note_recent", "add"):
        with monkeypatch.context() as patched:
            owner = {"write": ledger.Book}.get(place, meter.usage)
            whole = getattr(owner, place)

            def dies(*given: Any, whole: Callable = whole, **named: Any) -> None:
                whole(*given, **named)
                raise KeyboardInterrupt

            patched.setattr(owner, place, dies)
            with pytest.raises(KeyboardInterrupt), transaction.atomic():
                meter.count_due(world.now)
        world.check()
        assert Meter.objects.get().slot_seconds == 0
    world.round(None)
    world.check()
    assert Meter.objects.get().slot_seconds == 50


@pytest.mark.django_db(transaction=True)
def test_many_at_once_lose_and_double_nothing(submit: Callable[..., Job], team: Team) -> None:
    """Run metering, ends, admissions and changes of the amount concurrently, on real rows."""
    jobs = [submit(time_limit_seconds=HOUR) for _ in range(12)]
    world = World(jobs, team)
    for index in range(8):
        world.admit(index)
        world.launch(index)
    failures: list[BaseException] = []
    later = world.now + timedelta(seconds=900)

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - reported to the test's own thread
            failures.append(error)
        finally:
            connection.close()

    def metered() -> None:
        for second in range(100, 900, 100):
            with transaction.atomic():  # in the order in which everybody locks them
                rows = Meter.objects.select_for_update(no_key=True).filter(closed=False).order_by("pk")
                Meter.objects.filter(pk__in=[row.pk for row in rows]).update(due_at=NOON)
            meter.count_due(NOON + timedelta(seconds=second))
            meter.roll_over(NOON + timedelta(seconds=second))

    def ended(mine: list[int]) -> None:
        for index in mine:
            job = Job.objects.get(pk=jobs[index].pk)
            attempt = job.attempts.get()
            with transaction.atomic():
                job = Job.objects.select_for_update(no_key=True).get(pk=job.pk)
                Attempt.objects.filter(pk=attempt.pk).update(status="ended", ended_at=later)
                attempt.refresh_from_db()
                if index % 2:
                    refunds.refund_lost_work(attempt, job, later - timedelta(seconds=300))
                transitions.move(job, JobStatus.QUEUED, reason=Reason.NODE_LOST, actor="test")

    def admitted() -> None:
        for index in range(8, 12):
            with transaction.atomic():
                quotas.locked_root()
                job = Job.objects.select_for_update(no_key=True).get(pk=jobs[index].pk)
                ledger.reserve([job], NOON)
                transitions.move(job, JobStatus.ADMITTED, actor="test")

    def changed() -> None:
        mine = World.__new__(World)
        mine.now, mine.lowered, mine.budgets = NOON, set(), list(Budget.objects.order_by("name"))
        for amount in range(30 * HOUR, 40 * HOUR, HOUR):
            mine.amount((0, amount))

    works = [metered, metered, lambda: ended([0, 1, 2, 3]), lambda: ended([4, 5, 6]), admitted, changed]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures, failures
    world.now = later
    meter.count_due(later)
    world.check()
    closed = Meter.objects.filter(closed=True)
    assert closed.count() == 7 and set(closed.values_list("slot_seconds", flat=True)) == {900}
    lost = Transfer.objects.filter(kind="fault", period__budget=world.budgets[0]).aggregate(sum=Sum("amount"))["sum"]
    assert lost == 3 * 300
