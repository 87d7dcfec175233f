"""Budgets, prices, series and costs over HTTP."""

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Scope
from athanor.accounts.services import issue_token
from athanor.budgets import ledger, meter, metering_cycle
from athanor.budgets.models import Budget, BudgetPeriod, SeriesPoint, Transfer
from athanor.clusters.models import Pool
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.quotas import services as quotas
from tests.control_plane import drive
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db

HOUR = 3600


@pytest.fixture
def admin(make_user: Callable, team: Team) -> Api:
    user = make_user("root", team)
    User.objects.filter(pk=user.pk).update(platform_role="platform_admin")
    client = Api()
    token = issue_token(User.objects.get(pk=user.pk), team, "t", scopes=[Scope.READ, Scope.PLATFORM])[1]
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    return client


@pytest.fixture
def make(admin: Api, team: Team) -> Callable[..., dict[str, Any]]:
    def create(amount: int, **changes: Any) -> dict[str, Any]:
        body = {"node_id": quotas.leaf_of(team).id, "name": "b", "unit": "slot_hours", "period": "month"}
        answer = admin.send("POST", "budgets", {**body, "amount": amount, **changes})
        assert answer.status_code == 201, answer.content
        return answer.json()

    return create


def run_for(job: Job, seconds: float) -> Attempt:
    """Admit a job, and date its launch back by this long."""
    attempt = drive.run(job)
    Attempt.objects.filter(pk=attempt.pk).update(launched_at=timezone.now() - timedelta(seconds=seconds))
    return attempt


def carry_on() -> None:
    meter.Meter.objects.update(due_at=timezone.now() - timedelta(seconds=1))
    metering_cycle.run()


def test_a_budget_is_made_seen_lowered_and_stops_the_run(
    admin: Api, api: Api, make: Callable, submit: Callable[..., Job], team: Team
) -> None:
    made = make(100 * HOUR, hard=True)
    assert (made["current"]["available"], made["path"], made["hard"]) == (100 * HOUR, "red", True)
    job = submit(time_limit_seconds=2 * HOUR)
    run_for(job, 0)
    metering_cycle.run()
    shown = api.send("GET", f"budgets/{made['id']}")
    assert shown.json()["current"]["reserved"] == 2 * HOUR, "the member sees it too"
    assert shown.json()["forecast"]["at_present_rate"] > 0
    refused = api.send("PATCH", f"budgets/{made['id']}", {"amount": 1})
    assert (refused.status_code, refused.json()["code"]) == (403, "role_missing")
    lowered = admin.send("PATCH", f"budgets/{made['id']}", {"amount": 10}, if_match=shown["ETag"])
    assert lowered.status_code == 200, lowered.content
    again = admin.send("PATCH", f"budgets/{made['id']}", {"amount": 11}, if_match=shown["ETag"])
    assert again.status_code == 412
    metering_cycle.run()
    job.refresh_from_db()
    assert (job.status, job.reason) == ("pausing", "budget_exhausted")
    assert "Budget 'b' carries it only until" in job.reason_detail
    assert ledger.check() == []
    actions = list(
        AuditEvent.objects.filter(action__startswith="budget").order_by("seq").values_list("action", flat=True)
    )
    assert actions == ["budget.create", "budget.change"]


def test_who_is_in_no_team_below_it_does_not_see_it(
    make: Callable, api_of: Callable, make_user: Callable, other_team: Team, admin: Api
) -> None:
    made = make(1)
    of_all = make(2, name="all", node_id=quotas.root().id)
    stranger = api_of(make_user("sam", other_team), other_team)
    assert [row["id"] for row in stranger.send("GET", "budgets").json()["items"]] == [of_all["id"]]
    assert stranger.send("GET", f"budgets/{made['id']}").status_code == 404
    assert stranger.send("PATCH", f"budgets/{of_all['id']}", {"amount": 5}).status_code == 403
    assert {row["id"] for row in admin.send("GET", "budgets").json()["items"]} == {made["id"], of_all["id"]}


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"unit": "money"}, "/currency"),
        ({"node_id": "quota_none"}, "/node_id"),
        ({"amount": -1}, "/amount"),
        ({"period": "week"}, "/period"),
        ({"soft_percent": 0}, "/soft_percent"),
    ],
)
def test_what_is_wrong_with_a_budget_is_named(admin: Api, team: Team, wrong: dict[str, Any], pointer: str) -> None:
    body = {"node_id": quotas.leaf_of(team).id, "name": "b", "unit": "slot_hours", "period": "day", "amount": 1}
    answer = admin.send("POST", "budgets", {**body, **wrong})
    assert answer.status_code == 422 and answer.json()["errors"][0]["pointer"] == pointer, answer.content


def test_a_name_is_taken_once_in_a_node(make: Callable, admin: Api, team: Team) -> None:
    make(1)
    body = {"node_id": quotas.leaf_of(team).id, "name": "b", "unit": "slot_hours", "period": "day", "amount": 1}
    answer = admin.send("POST", "budgets", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "budget_exists")


def test_a_statement_adds_up_and_names_only_ones_own(
    make: Callable, api: Api, admin: Api, submit: Callable[..., Job], api_of: Callable, make_user: Callable,
    other_team: Team,
) -> None:  # fmt: skip
    made = make(100 * HOUR, node_id=quotas.root().id)
    Budget.objects.update(created_at=timezone.now() - timedelta(days=1))
    job = submit(time_limit_seconds=2 * HOUR)
    run_for(job, 1)
    carry_on()
    drive.settle()
    full = api.send("GET", f"budgets/{made['id']}/statement").json()
    period = full["period"]
    assert period["spent"] == sum(line["spent"] for line in full["lines"]) + full["others"]["spent"] >= 1
    assert period["reserved"] == sum(line["reserved"] for line in full["lines"])
    assert [line["job_id"] for line in full["lines"]] == [job.id]
    assert full["burn_down"][-1]["spent"] == period["spent"]
    stranger = api_of(make_user("sam", other_team), other_team)
    seen = stranger.send("GET", f"budgets/{made['id']}/statement").json()
    assert seen["lines"] == [] and seen["others"] == {"spent": period["spent"], "reserved": period["reserved"]}
    rows = list(
        csv.DictReader(io.StringIO(b"".join(admin.send("GET", f"budgets/{made['id']}/statement:export")).decode()))
    )
    assert [row["kind"] for row in rows] == list(Transfer.objects.order_by("pk").values_list("kind", flat=True))
    assert (
        sum(int(row["amount"]) for row in rows if row["kind"] == "reserve")
        == full["period"]["reserved"] + period["spent"]
    )
    of_stranger = b"".join(stranger.send("GET", f"budgets/{made['id']}/statement:export")).decode()
    assert job.id not in of_stranger and "open" in of_stranger


def test_when_the_soft_part_is_spent_every_team_is_told_once(
    make: Callable, submit: Callable[..., Job], api: Api
) -> None:
    made = make(100)
    Budget.objects.update(created_at=timezone.now() - timedelta(days=1))
    job = submit(time_limit_seconds=HOUR)
    run_for(job, 90)
    for _ in range(2):
        carry_on()
    event = JobEvent.objects.get(type="job.budget_warning")
    assert event.job_id == job.id and event.data["budget"] == made["id"] and "of 0.03 slot-hours" in event.message
    assert AuditEvent.objects.filter(action="budget.warn").count() == 1
    assert api.send("GET", f"budgets/{made['id']}").json()["current"]["warned_at"]


def test_two_metering_cycles_at_the_same_time_warn_once(make: Callable, submit: Callable[..., Job], api: Api) -> None:
    make(100)
    Budget.objects.update(created_at=timezone.now() - timedelta(days=1))
    run_for(submit(time_limit_seconds=HOUR), 90)
    carry_on()
    BudgetPeriod.objects.update(warned_at=None)
    JobEvent.objects.filter(type="job.budget_warning").delete()
    before = AuditEvent.objects.filter(action="budget.warn").count()
    (period,) = metering_cycle._periods_to_warn(timezone.now())  # both cycles have read it before either warns
    metering_cycle._warn(period)
    metering_cycle._warn(period)
    assert JobEvent.objects.filter(type="job.budget_warning").count() == 1
    assert AuditEvent.objects.filter(action="budget.warn").count() == before + 1


def test_costs_are_reported_by_what_is_asked(
    api: Api, submit: Callable[..., Job], pool: Pool, api_of: Callable, make_user: Callable, other_team: Team
) -> None:
    Pool.objects.update(price_per_slot_hour="3.6")
    run_for(submit(project="p1"), 100)
    carry_on()
    answer = api.send("GET", "costs?by=team,project,day")
    (row,) = answer.json()["items"]
    assert (row["team"], row["project"], row["currency"]) == ("red", "p1", "USD")
    assert 100 <= row["slot_seconds"] < 110 and row["cost"] == row["charged"] == row["slot_seconds"] * 1000
    text = b"".join(api.send("GET", "costs:export?by=team")).decode().splitlines()
    assert text[0].startswith("team,currency,slot_seconds,cost") and text[1].startswith("red,USD,")
    assert api_of(make_user("sam", other_team), other_team).send("GET", "costs").json()["items"] == []
    assert api.send("GET", "costs?by=colour").json()["errors"][0]["pointer"] == "/by"


def test_prices_are_said_by_rules_and_series(admin: Api, api: Api, pool: Pool) -> None:
    every_day = list(range(7))
    rules = [{"weekdays": every_day, "from_hour": 0, "to_hour": 24, "price_per_slot_hour": "1.25"}]
    body = {"price_per_slot_hour": "2", "rules": rules, "spot": True, "watts_per_slot": 700}
    assert api.send("PATCH", f"prices/{pool.id}", body).status_code == 403
    changed = admin.send("PATCH", f"prices/{pool.id}", body)
    assert changed.status_code == 200, changed.content
    assert (changed.json()["price_now"], changed.json()["spot"]) == ("1.250000", True)
    wrong = admin.send("PATCH", f"prices/{pool.id}", {"rules": [{**rules[0], "zone": "Nowhere/At_All"}]})
    assert wrong.json()["errors"][0]["pointer"] == "/rules/0/zone"
    series = admin.send("POST", "series", {"kind": "price", "pool_id": pool.id}).json()
    now = timezone.now().replace(microsecond=0)
    points = [{"time": (now - timedelta(minutes=1)).isoformat(), "value": 0.5}]
    assert admin.send("POST", f"series/{series['id']}/points", points).json() == {"points": 1}
    (shown,) = api.send("GET", "prices").json()["items"]
    assert (shown["price_now"], shown["price_series_id"]) == ("0.500000", series["id"])
    assert api.send("GET", f"series/{series['id']}/points").json()["items"][0]["value"] == 0.5
    assert admin.send("DELETE", f"series/{series['id']}").status_code == 204
    assert api.send("GET", f"prices/{pool.id}").json()["price_now"] == "1.250000"


def test_a_series_is_uploaded_as_csv_and_each_wrong_line_is_named(admin: Api, pool: Pool) -> None:
    series = admin.send("POST", "series", {"kind": "carbon", "cluster_id": pool.cluster_id}).json()
    path = f"/api/v1/series/{series['id']}/points"
    good = "time,value\n2026-03-10T12:00:00Z,211.5\n2026-03-10T13:00:00Z,190\n"
    assert admin.post(path, good, content_type="text/csv").json() == {"points": 2}
    assert [p.value for p in SeriesPoint.objects.order_by("time")] == [211_500, 190_000]
    provider = {"url": "https://example.org/carbon?key=hidden", "mapping": {"items": "data"}, "fetch_seconds": 900}
    admin.send("POST", "series", {"kind": "carbon", "cluster_id": pool.cluster_id, **provider})
    again = admin.send("POST", "series", {"kind": "carbon", "cluster_id": pool.cluster_id, "stale_seconds": 600}).json()
    assert {name: again[name] for name in provider} == provider, "what is left out stays"
    assert (again["id"], again["stale_seconds"]) == (series["id"], 600)
    trail = AuditEvent.objects.filter(action="series.connect").order_by("seq").last()
    assert trail is not None and trail.after["host"] == "https://example.org" and "hidden" not in str(trail.after)
    bad = admin.post(path, "time,value\nyesterday,3\n2026-03-10T12:00:00Z,-1\n", content_type="text/csv")
    assert bad.status_code == 422
    assert [problem["pointer"] for problem in bad.json()["errors"]] == ["/line/2", "/line/3"]
    assert "yesterday" in bad.json()["errors"][0]["detail"]
    assert SeriesPoint.objects.filter(time=datetime(2026, 3, 10, 12, tzinfo=UTC), value=211_500).exists()


def test_a_budget_that_is_no_longer_active_gives_back_what_it_reserved(
    make: Callable, admin: Api, submit: Callable[..., Job]
) -> None:
    made = make(100 * HOUR)
    drive.run(submit(time_limit_seconds=HOUR))
    metering_cycle.run()
    assert admin.send("PATCH", f"budgets/{made['id']}", {"active": False}).status_code == 200
    metering_cycle.run()
    shown = admin.send("GET", f"budgets/{made['id']}").json()
    assert shown["current"]["reserved"] == 0 and not shown["active"]
    assert admin.send("GET", "budgets").json()["items"] == []
    with transaction.atomic():
        assert ledger.check() == []


def test_a_budget_of_an_accelerator_that_no_pool_has_is_refused(
    admin: Api, team: Team, pool: Pool, make: Callable[..., dict[str, Any]]
) -> None:
    body = {"node_id": quotas.leaf_of(team).id, "name": "b", "unit": "slot_hours", "period": "month", "amount": 1}
    answer = admin.send("POST", "budgets", {**body, "accelerator": "cpuu"})
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert (problem["pointer"], problem["detail"]) == (
        "/accelerator", "no pool has the accelerator 'cpuu'; did you mean cpu?",
    )  # fmt: skip
    assert make(1, accelerator="cpu")["accelerator"] == "cpu"
