"""POST /jobs:plan: estimated start, why not now, what it would reserve, and variants that start sooner."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F

from athanor.accounts.models import Team, User
from athanor.backends.fake.backend import World
from athanor.budgets import services as budgets
from athanor.clusters.models import Cluster, Pool
from athanor.jobs.models import Attempt, Job
from athanor.quotas.models import QuotaGrant, QuotaNode
from athanor.quotas.services import leaf_of
from athanor.scheduling import services
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db


def plan(api: Api, spec: dict[str, Any], **changes: Any) -> Any:
    answer = api.send("POST", "jobs:plan", {**spec, **changes})
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_what_fits_starts_at_once_and_needs_no_alternatives(api: Api, spec: dict[str, Any], pool: Pool) -> None:
    answer = plan(api, spec)
    assert answer["start"]["starts_now"] is True
    assert answer["start"]["p90_seconds"] == 0
    assert answer["alternatives"] == []
    assert Job.objects.count() == 0, "a plan submits nothing"


def test_what_like_jobs_took_is_the_expected_duration_and_cost(
    api: Api, spec: dict[str, Any], submit: Callable[..., Job], pool: Pool, world: World, bucket: str
) -> None:
    assert plan(api, spec)["expected"] is None
    pool.price_per_slot_hour = 36
    pool.save()
    for seconds in (100, 200, 300):
        attempt = drive.run(submit())
        drive.end(world, attempt, EndClass.COMPLETED)
        Attempt.objects.filter(pk=attempt.pk).update(launched_at=F("ended_at") - timedelta(seconds=seconds))
    answer = plan(api, spec)
    expected, slots = answer["expected"], Job.objects.get(pk=attempt.job_id).slots
    assert (expected["p50_seconds"], expected["p90_seconds"], expected["like_jobs"]) == (200, 321, 3)
    assert (expected["p50_cost"], expected["p90_cost"]) == (2.0 * slots, pytest.approx(3.21 * slots))
    assert expected["p90_cost"] < answer["cost"]["amount"]


def test_what_waits_says_behind_whom_for_how_long_and_what_would_start_sooner(
    api: Api, spec: dict[str, Any], submit: Callable[..., Job], pool: Pool
) -> None:
    submit(resources={"cluster": "fake", "processes_per_node": 6}, time_limit_seconds=600)
    services.admit()
    answer = plan(api, spec, resources={"cluster": "fake", "processes_per_node": 4}, time_limit_seconds=1200)
    start = answer["start"]
    assert start["starts_now"] is False
    assert start["reason"]["code"] == "waiting_for_capacity"
    assert (start["position"], start["starts_in_seconds"]) == (1, pytest.approx(600, abs=30))
    assert 0 < start["p50_seconds"] <= start["p90_seconds"] <= 600
    half = next(each for each in answer["alternatives"] if each["changes"] == {"resources": {"processes_per_node": 2}})
    assert half["start"]["starts_now"] is True


def test_another_accelerator_is_offered(api: Api, spec: dict[str, Any], submit: Callable[..., Job], pool: Pool) -> None:
    other = Cluster.objects.create(name="big", kind="fake", config={"world": "plan"})
    Pool.objects.create(cluster=other, name="h100", accelerator="h100", slots_per_node=8, memory_bytes=64 * 2**30)
    submit(resources={"cluster": "fake", "processes_per_node": 8})
    services.admit()
    answer = plan(api, spec)
    changes = {"resources": {"cluster": "big", "accelerator": "h100"}}
    assert [each["start"]["starts_now"] for each in answer["alternatives"] if each["changes"] == changes] == [True]


def test_a_quota_that_is_used_up_and_a_limit_that_refuses_are_named(
    api: Api, spec: dict[str, Any], team: Team, pool: Pool
) -> None:
    QuotaGrant.objects.create(node=leaf_of(team), accelerator="cpu", nominal=1, borrow_limit=0)
    answer = plan(api, spec, resources={"cluster": "fake", "processes_per_node": 2})
    assert answer["start"]["reason"]["code"] == "quota_exceeded"
    assert answer["start"]["p50_seconds"] is None, "it can never start as things are"
    QuotaNode.objects.filter(team=team).update(max_run_seconds=60)
    refused = api.send("POST", "jobs:plan", spec)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "max_run_seconds")


def test_what_it_would_reserve_of_a_budget(api: Api, spec: dict[str, Any], team: Team, pool: Pool, user: User) -> None:
    facts = {"unit": "slot_hours", "period": "month", "soft_percent": 80, "hard": True}
    budgets.create(leaf_of(team).id, user, name="small", amount=7200, **facts)
    answer = plan(api, spec, time_limit_seconds=3600, resources={"cluster": "fake", "processes_per_node": 2})
    [budget] = answer["budgets"]
    assert (budget["name"], budget["unit"], budget["available"]) == ("small", "slot-hours", 2.0)
    assert budget["reserves"] == pytest.approx(2.0, abs=0.01) or budget["reserves"] < 2.0, "less at a month's end"
    longer = plan(api, spec, time_limit_seconds=36_000, resources={"cluster": "fake", "processes_per_node": 8})
    assert longer["start"]["reason"]["code"] == "budget_exhausted"
    later = next(each for each in longer["alternatives"] if "schedule" in each["changes"])
    assert later["start"]["reason"]["code"] == "not_before"
    assert later["start"]["p50_seconds"] > 0
