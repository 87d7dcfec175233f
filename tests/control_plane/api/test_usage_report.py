"""The report of a month: its parts sum to the statement and to the costs, and it shows a team its own usage only."""

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from athanor.accounts.models import Team, User
from athanor.budgets import goodput_hours
from athanor.budgets.models import JobGoodput, PoolPricing
from athanor.jobs.models import Job
from athanor.telemetry.usage_report import bounds_of_month
from tests.control_plane.api.test_efficiency import add_samples, set_carbon
from tests.control_plane.api.test_goodput import SLOTS, interrupted, shrunken  # noqa: F401 - fixtures
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
RANGE = "after=2026-03-01T00:00:00Z&before=2026-04-01T00:00:00Z"


def report_of(api: Api, query: str = "month=2026-03") -> Any:
    """Return the only item of a report, after adding it up and comparing it with the statement and the costs."""
    answer = api.send("GET", f"usage-report?{query}")
    assert answer.status_code == 200, answer.content
    (found,) = answer.json()["items"]
    (statement,) = api.send("GET", f"goodput?{RANGE}").json()["items"]
    (costs,) = api.send("GET", f"costs?{RANGE}").json()["items"]
    parts = [found["productive"], found["uncounted"], *found["unproductive"]]
    for name in ("slot_seconds", "cost"):
        assert sum(each[name] for each in parts) == found[name] == statement[name] == costs[name]
        assert found["uncounted"][name] == statement["uncounted"][name]
        by_activity = {each["activity"]: each[name] for each in statement["categories"]}
        assert found["productive"][name] == by_activity.get("training", 0) + by_activity.get("preparing", 0)
        for activity in {each["activity"] for each in found["unproductive"]}:
            own = sum(each[name] for each in found["unproductive"] if each["activity"] == activity)
            assert own == by_activity[activity]
    assert [found[name] for name in ("charged", "fault_slot_seconds", "fault_cost", "team")] == [
        costs[name] for name in ("charged", "fault_slot_seconds", "fault_cost", "team")
    ]
    energy = found["energy"]
    assert sum(energy[f"{part}_slot_seconds"] for part in ("measured", "estimated", "unknown")) == pytest.approx(
        found["slot_seconds"]
    )
    return found


def divide(*jobs: Job) -> None:
    for job in jobs:
        assert JobGoodput.objects.filter(pk=job.pk).exists()
        goodput_hours.count(job.pk, datetime.now(UTC))


def test_the_month_adds_up_and_names_activities_causes_and_faults(
    interrupted: Job, shrunken: Job, api: Api  # noqa: F811 - the imported fixtures
) -> None:  # fmt: skip
    undivided = report_of(api)
    assert undivided["uncounted"]["slot_seconds"] == undivided["slot_seconds"] == 179 * SLOTS + 600
    divide(interrupted, shrunken)
    found = report_of(api)
    assert found["uncounted"] == {"slot_seconds": 0, "cost": 0}
    unproductive = {
        (each["activity"], (each["reason"] or {}).get("code")): each["slot_seconds"] for each in found["unproductive"]
    }
    assert unproductive["lost", "process_killed"] == 20 * SLOTS
    assert (unproductive["lost", "node_lost"], unproductive["lost", None]) == (30 * SLOTS, 20 * 4)
    assert unproductive["idle", None] == 65 * 2 + 30 * 4
    assert found["fault_slot_seconds"] == 30 * SLOTS
    assert found["energy"]["kwh"] is None


def test_energy_and_carbon_of_a_month_are_those_of_its_jobs(
    interrupted: Job, shrunken: Job, api: Api  # noqa: F811 - the imported fixtures
) -> None:  # fmt: skip
    add_samples(interrupted, host_power=[(12, 80.0, "n1")])
    pool = interrupted.pool
    PoolPricing.objects.update_or_create(pool=pool, defaults={"watts_per_slot": 50})
    set_carbon(interrupted, 400)
    found = report_of(api)["energy"]
    jobs = [api.get(f"/api/v1/jobs/{job.id}/efficiency").json()["energy"] for job in (interrupted, shrunken)]
    for name in ("kwh", "measured_kwh", "estimated_kwh", "carbon_grams", "measured_slot_seconds"):
        assert found[name] == pytest.approx(sum(each[name] for each in jobs)) != 0
    assert [each["source"] for each in (found, *jobs)] == ["mixed", "mixed", "estimated"]


def test_the_export_has_the_same_figures_and_leaves_unknown_ones_empty(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    divide(interrupted)
    found = report_of(api)
    answer = api.send("GET", "usage-report:export?month=2026-03")
    assert 'filename="usage-2026-03.csv"' in answer["Content-Disposition"]
    (row,) = csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode()))
    assert (row["team"], row["cost"], row["kwh"], row["carbon_grams"]) == ("red", str(found["cost"]), "", "")
    for name in ("slot_seconds", "cost"):
        parts = [value for key, value in row.items() if key.endswith(f"_{name}") and not key.startswith("fault_")]
        rest = float(row["energy_unknown_slot_seconds"]) if name == "slot_seconds" else 0
        carbon = float(row["carbon_slot_seconds"]) if name == "slot_seconds" else 0
        assert sum(map(float, parts)) - rest - carbon == float(row[name])
    assert int(row["lost_slot_seconds"]) == 50 * SLOTS


def test_a_month_without_usage_another_team_and_a_wrong_month(
    interrupted: Job, api: Api, make_user: Callable[..., User], api_of: Callable[..., Api], other_team: Team  # noqa: F811 - the imported fixture
) -> None:  # fmt: skip
    assert api.send("GET", "usage-report?month=2026-02").json() == {"month": "2026-02", "items": []}
    stranger = api_of(make_user("bob", other_team), other_team)
    assert stranger.send("GET", "usage-report?month=2026-03").json()["items"] == []
    for wrong in ("2026-13", "march", "2026-3", "2026-03-01", "2026-03%0A"):
        answer = api.send("GET", f"usage-report?month={wrong}")
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/month")


@pytest.mark.parametrize(("month", "days"), [("2026-02", 28), ("2028-02", 29), ("2026-12", 31), ("2026-04", 30)])
def test_a_month_ends_where_the_next_begins(month: str, days: int) -> None:
    start, end = bounds_of_month(month)
    assert (start.day, end.day, (end - start).days) == (1, 1, days)
