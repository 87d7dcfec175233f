"""Schedule windows by price and carbon, series fetched from a real server, and savings from deferring."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from athanor.accounts.models import AuditEvent, User
from athanor.budgets import meter, metering_cycle, schedule_windows, series, series_fetch
from athanor.budgets.models import Meter, PoolPricing, Series, SeriesPoint, UsageHour
from athanor.clusters.models import Pool
from athanor.jobs import transitions
from athanor.jobs.models import Attempt, Job
from athanor.jobs.reasons import Reason
from athanor.jobs.states import JobStatus
from tests.control_plane import drive
from tests.providers import Provider

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def carbon(pool: Pool) -> Callable[..., Series]:
    """Grams a kWh at hours from now."""

    def make(**values: float) -> Series:
        now = timezone.now().replace(microsecond=0)
        row, _ = Series.objects.get_or_create(kind="carbon", cluster=pool.cluster, pool=None)
        lines = [
            f"{(now + int(hours[1:].replace('_', '-')) * HOUR).isoformat()},{value}" for hours, value in values.items()
        ]
        series.store(row, series.from_csv("carbon", "\n".join(lines)))
        return row

    return make


def hold(job: Job) -> tuple[str, str] | None:
    found = schedule_windows.waiting_reason(Job.objects.select_related("pool__cluster").get(pk=job.pk), timezone.now())
    return found and (found[0].value, found[1])


def test_a_job_waits_for_its_time_and_its_ceilings(submit: Callable[..., Job], carbon: Callable, pool: Pool) -> None:
    later = timezone.now() + HOUR
    early = submit(schedule={"not_before": later.isoformat()})
    Job.objects.filter(pk=early.pk).update(not_before=later)
    assert hold(early)[0] == "not_before"
    assert hold(submit()) is None
    clean = submit(schedule={"max_grams_per_kwh": 200})
    assert hold(clean)[0] == "window_closed" and "is not known now" in hold(clean)[1]
    carbon(h0=300, h1=150, h2=300)
    assert hold(clean) == ("window_closed", "300 g CO2 a kWh; its ceiling is 200.")
    opens = schedule_windows.opens_at(clean, timezone.now())
    assert opens is not None and abs(opens - timezone.now() - HOUR) < timedelta(minutes=1)
    carbon(h0=200)
    assert hold(clean) is None
    Pool.objects.update(price_per_slot_hour="2.5")
    cheap = submit(schedule={"max_price_per_slot_hour": 2.4})
    assert hold(cheap) == ("window_closed", "2.5 USD a slot-hour; its ceiling is 2.4.")
    assert schedule_windows.opens_at(Job.objects.get(pk=cheap.pk), timezone.now()) is None, "as far as is known, never"
    Job.objects.filter(pk=cheap.pk).update(
        deadline=timezone.now() + timedelta(seconds=cheap.resolved_spec["time_limit_seconds"])
    )
    assert hold(cheap) is None, "waiting longer would miss its deadline"


def test_a_deferrable_run_pauses_when_the_window_closes(submit: Callable[..., Job], carbon: Callable) -> None:
    carbon(h0=100)
    job = submit(schedule={"max_grams_per_kwh": 200, "deferrable": True})
    stays = submit(schedule={"max_grams_per_kwh": 200})
    for each in (job, stays):
        drive.run(each)
    metering_cycle.run()
    assert drive.status_of(job) == ("running", "")
    carbon(h0=250)
    metering_cycle.run()
    assert drive.status_of(job) == ("pausing", "window_closed")
    assert drive.status_of(stays) == ("running", ""), "it did not offer to be deferred"


def test_what_waiting_for_the_window_saved_is_told(
    submit: Callable[..., Job], carbon: Callable, pool: Pool, api: Any
) -> None:
    """Submitted two hours ago at 400 g and 4 USD, it ran half an hour of the last one at 100 g and 1 USD."""
    carbon(h_2=400, h_1=100)
    now = timezone.now().replace(microsecond=0)
    row = Series.objects.create(kind="price", pool=pool)
    for hours, value in ((2, 4), (1, 1)):
        SeriesPoint.objects.create(series=row, time=now - hours * HOUR, value=value * 10**6)
    PoolPricing.objects.create(pool=pool, watts_per_slot=500)
    job = submit(schedule={"max_grams_per_kwh": 200})
    Job.objects.filter(pk=job.pk).update(created_at=now - 2 * HOUR)
    job.refresh_from_db()
    with transaction.atomic():
        for to in (JobStatus.ADMITTED, JobStatus.DISPATCHING, JobStatus.STARTING, JobStatus.RUNNING):
            transitions.move(job, to, actor="test")
        launched = now - HOUR
        Attempt.objects.create(
            job=job, number=1, backend_name="a", status="ended", launched_at=launched, ended_at=launched + HOUR / 2
        )
        transitions.move(job, JobStatus.FAILED, reason=Reason.USER_ERROR, actor="test")
    found = Meter.objects.get()
    assert (found.cost, found.saved_cost) == (500_000, 1_500_000)
    assert (found.milligrams, found.saved_milligrams) == pytest.approx((25_000, 75_000), abs=2), "a quarter of a kWh"
    assert sum(UsageHour.objects.values_list("saved_cost", flat=True)) == 1_500_000
    answer = api.send("GET", f"jobs/{job.id}/cost").json()
    assert (answer["charged"], answer["saved_cost"], answer["has_ceiling"]) == (500_000, 1_500_000, True)


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as made:
        yield made


def test_a_provider_is_asked_when_it_is_due(provider: Provider, pool: Pool, settings: Any) -> None:
    mapping = {"items": "data.history", "time": "datetime", "value": "carbonIntensity"}
    row = Series.objects.create(kind="carbon", cluster=pool.cluster, url=provider.url, mapping=mapping)
    series_fetch.fetch_due()
    row.refresh_from_db()
    assert "not sent" in row.problem and row.fetched_at is None, "an address of its own network"
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"webhook_allow": "127.0.0.1"})
    history = [{"datetime": f"2026-03-10T{hour:02}:00:00Z", "carbonIntensity": 100 + hour / 8} for hour in range(24)]
    provider.body = json.dumps({"data": {"history": history}}).encode()
    assert not series_fetch.due().exists(), "not again immediately"
    assert series_fetch.fetch(row.pk) == ""
    row.refresh_from_db()
    assert row.problem == "" and row.fetched_at is not None
    assert list(SeriesPoint.objects.order_by("time").values_list("value", flat=True))[:3] == [100_000, 100_125, 100_250]
    for status, body, problem in [
        (200, b'{"data": {}}', "the answer has no 'data.history'"),
        (200, b"<html>", "the answer is no JSON"),
        (500, b"", "answered 500"),
        (302, b"", "redirects are not followed"),
        (200, b'{"data": {"history": [{"datetime": "now"}]}}', "item 0 has not both"),
    ]:
        provider.status, provider.body = status, body
        assert problem in series_fetch.fetch(row.pk)
    assert SeriesPoint.objects.count() == 24


def test_a_user_asks_a_provider_at_most_every_ten_seconds_and_is_on_record(
    provider: Provider, pool: Pool, settings: Any, user: User
) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"webhook_allow": "127.0.0.1"})
    provider.status, provider.body = 500, b""
    row = Series.objects.create(kind="carbon", cluster=pool.cluster, url=provider.url, mapping={})
    assert "answered 500" in series_fetch.fetch(row.pk, user)
    assert series_fetch.fetch(row.pk, user) == "", "not asked again"
    assert AuditEvent.objects.filter(action="series.fetch", target_id=row.pk, actor_id=user.id).count() == 1
    Series.objects.update(asked_at=timezone.now() - timedelta(seconds=11))
    assert "answered 500" in series_fetch.fetch(row.pk, user)
    assert AuditEvent.objects.filter(action="series.fetch").count() == 2


def test_the_meter_closes_an_attempt_that_never_ran(submit: Callable[..., Job]) -> None:
    job = submit()
    drive.start(job)
    with transaction.atomic():
        Attempt.objects.update(launched_at=None)
        meter.release(job)
    assert not Meter.objects.filter(slot_seconds__gt=0).exists()
