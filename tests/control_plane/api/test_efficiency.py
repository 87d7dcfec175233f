"""The efficiency of a job: its ledger, its samples, and what is not known."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from athanor.accounts.models import Team, User
from athanor.budgets.models import PoolPricing, Series, SeriesPoint
from athanor.jobs.models import Job
from athanor.telemetry import ingest, system
from athanor.telemetry.models import SystemInterval
from tests.control_plane.api.test_goodput import (  # noqa: F401 - fixtures
    NOON,
    SLOTS,
    interrupted,
    shrunken,
)
from tests.control_plane.conftest import Api
from trainer.contract.run import Batch, MetricPoint

pytestmark = pytest.mark.django_db
GIB = 2**30


def efficiency_of(api: Api, job: Job) -> dict[str, Any]:
    """Return the efficiency of a job, after checking it against its ledger and its cost."""
    found: dict[str, Any] = api.get(f"/api/v1/jobs/{job.id}/efficiency").json()
    ledger = api.get(f"/api/v1/jobs/{job.id}/goodput").json()
    assert [found[name] for name in ("slot_seconds", "goodput", "cost", "currency")] == [
        ledger[name] for name in ("slot_seconds", "goodput", "cost", "currency")
    ]
    productive = [each for each in ledger["categories"] if each["activity"] in ("training", "preparing")]
    assert found["productive_slot_seconds"] == pytest.approx(sum(each["slot_seconds"] for each in productive))
    assert found["unproductive_cost"] == ledger["cost"] - sum(each["cost"] for each in productive)
    energy, used = found["energy"], api.get(f"/api/v1/jobs/{job.id}/cost").json()["slot_seconds"]
    parts = [energy[f"{part}_slot_seconds"] for part in ("measured", "estimated", "unknown")]
    assert sum(parts) == pytest.approx(used)
    assert (energy["kwh"] or 0) == pytest.approx(energy["measured_kwh"] + energy["estimated_kwh"])
    return found


def add_samples(job: Job, **series: list[tuple[int, float, str]]) -> None:
    """Store for each minute of a series: the number of samples, the value of each, and the node."""
    attempt = job.attempts.order_by("number")[0]
    for minute in range(max(map(len, series.values()))):
        values = {}
        for name, rows in series.items():
            if minute < len(rows):
                count, value, node = rows[minute]
                values[f"system/{name}"] = (count, count * value, value, node, value, node)
        time = NOON + timedelta(minutes=minute)
        SystemInterval.objects.create(attempt=attempt, time=time, seconds=60, values=values)


def set_carbon(job: Job, grams: float) -> None:
    row = Series.objects.create(kind="carbon", cluster=job.pool.cluster)
    SeriesPoint.objects.create(series=row, time=NOON - timedelta(hours=1), value=round(grams * 1000))


def test_what_was_not_sampled_or_configured_is_not_known(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    found = efficiency_of(api, interrupted)
    assert set(found["loads"].values()) == {None}
    assert found["memory"] is None
    energy = found["energy"]
    assert (energy["kwh"], energy["source"], energy["carbon_grams"]) == (None, "unknown", None)
    assert energy["unknown_slot_seconds"] == 179 * SLOTS


def test_loads_and_memory_are_those_of_the_samples(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    cpu = [(6, 0.1, "n1"), *((6, 0.5 + minute / 100, "n1") for minute in range(8)), (3, 1.0, "n2")]
    add_samples(interrupted, cpu_utilisation=cpu)
    values = {"memory/peak_bytes": 3.0 * GIB, "memory/peak_rank": 2.0, "memory/mean_peak_bytes": 2.0 * GIB}
    points = [MetricPoint(step=1, time=NOON, values=values)]
    ingest.ingest(interrupted.attempts.get(number=2), "metrics", Batch(writer="r0", sequence=0, points=points))
    found = efficiency_of(api, interrupted)
    load = found["loads"]["cpu_utilisation"]
    assert load["mean"] == pytest.approx((6 * 0.1 + 6 * (8 * 0.5 + 0.28) + 3 * 1.0) / 57)
    assert (load["p10"], load["highest"], load["highest_at"]) == (pytest.approx(0.1), 1.0, "n2")
    assert found["memory"] == {
        "peak_bytes": 3 * GIB, "peak_rank": 2, "mean_peak_bytes": 2 * GIB, "available_bytes": 64 * GIB,
        "headroom_bytes": 61 * GIB,
    }  # fmt: skip


def test_power_is_integrated_and_gaps_are_not_bridged(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    """12 samples of 80 W of a node of eight slots, of which the job holds four; the rest of the time has none."""
    add_samples(interrupted, host_power=[(6, 60.0, "n1"), (6, 100.0, "n1")], gpu_power=[(60, 700.0, "n1:0")])
    energy = efficiency_of(api, interrupted)["energy"]
    measured = 12 * 10 * SLOTS
    assert (energy["source"], energy["measured_slot_seconds"]) == ("measured", measured)
    assert energy["kwh"] == pytest.approx(measured * 10 / 3_600_000)
    assert energy["unknown_slot_seconds"] == 179 * SLOTS - measured
    PoolPricing.objects.update_or_create(pool=interrupted.pool, defaults={"watts_per_slot": 20})
    set_carbon(interrupted, 500)
    energy = efficiency_of(api, interrupted)["energy"]
    assert (energy["source"], energy["unknown_slot_seconds"]) == ("mixed", 0)
    assert energy["kwh"] == pytest.approx((measured * 10 + (179 * SLOTS - measured) * 20) / 3_600_000)
    assert energy["carbon_grams"] == pytest.approx(energy["kwh"] * 500)
    assert energy["carbon_slot_seconds"] == 179 * SLOTS


def test_more_samples_than_time_measure_no_more_than_the_time(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    """The first and the last sample of a short run are closer than the others."""
    add_samples(interrupted, host_power=[(20, 80.0, "n1")])
    energy = efficiency_of(api, interrupted)["energy"]
    assert (energy["measured_slot_seconds"], energy["unknown_slot_seconds"]) == (179 * SLOTS, 0)


def test_energy_is_the_same_after_minutes_are_merged_into_hours(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    add_samples(interrupted, host_power=[(6, 60.0, "n1"), (6, 100.0, "n1")])
    before = efficiency_of(api, interrupted)["energy"]
    assert system.coarsen() == 2
    assert efficiency_of(api, interrupted)["energy"] == before


def test_a_spare_node_that_was_of_no_use_is_advised_against(shrunken: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    """Here a node was lost, so that there is no such advice; with a cause that is no fault there is."""
    assert efficiency_of(api, shrunken)["suggestions"] == []
    row = shrunken.events.get(type="generation.started")
    row.data = {**row.data, "end_class": "user_error"}
    row.save()
    found = efficiency_of(api, shrunken)
    (advice,) = found["suggestions"]
    assert (advice["advice"], advice["changes"]) == ("no_spare_nodes", {"resources": {"spare_nodes": 0}})
    assert advice["saving"] == found["idle_slot_seconds"] * 1000
    Job.objects.filter(pk=shrunken.pk).update(finished_at=None)
    assert efficiency_of(api, shrunken)["suggestions"] == [], "it runs"


def test_another_team_does_not_see_it_and_a_job_without_launch_has_no_figures(
    submit: Callable[..., Job], api: Api, make_user: Callable[..., User], api_of: Callable[..., Api], other_team: Team
) -> None:
    job = submit()
    stranger = api_of(make_user("bob", other_team), other_team)
    assert stranger.get(f"/api/v1/jobs/{job.id}/efficiency").status_code == 404
    found = efficiency_of(api, job)
    assert (found["goodput"], found["slot_seconds"], found["energy"]["kwh"]) == (None, 0, None)
