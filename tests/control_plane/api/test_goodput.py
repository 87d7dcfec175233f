"""The goodput ledger of a job as the API shows it: it adds up to the meters, and only the job's team sees it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from athanor.accounts.models import Team, User
from athanor.backends.fake.backend import World
from athanor.budgets import meter, refunds
from athanor.budgets.models import Meter, UsageHour
from athanor.clusters.models import Pool
from athanor.jobs.models import Attempt, Job, JobEvent
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.run import EndClass

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
PRICE = "3.6"  # 1000 millionths for a slot-second
SLOTS = 4


def at(second: float) -> datetime:
    return NOON + timedelta(seconds=second)


@pytest.fixture
def interrupted(submit: Callable[..., Job], pool: Pool) -> Job:
    """A job of two attempts. The first, from 10 s to 110 s: a rank is killed at 60 s, the node is lost at 110 s."""
    Pool.objects.filter(pk=pool.pk).update(price_per_slot_hour=PRICE)
    job = submit()
    Job.objects.filter(pk=job.pk).update(
        created_at=NOON, finished_at=at(200), status="succeeded", reason="completed", slots=SLOTS
    )
    JobEvent.objects.filter(job=job).delete()
    first = attempt(job, 1, 10, 110, "node_lost", last_step=60)
    second = attempt(job, 2, 120, 199, "completed", last_step=90)
    write(job, [
        (5, "job.status", "scheduling", {"to": "admitted"}),
        (6, "job.status", "dispatch", {"to": "dispatching", "attempt": first.id, "number": 1}),
        (8, "job.status", "dispatch", {"to": "starting"}),
        (18, "training.started", first.id, {"step": 0}),
        (20, "phase.finished", first.id, {"phase": "first_step", "seconds": 2}),
        (21, "job.status", "dispatch", {"to": "running"}),
        (42, "checkpoint.saved", first.id, {"step": 20, "seconds": 2, "blocked_seconds": 1, "final": False}),
        (60, "generation.started", first.id, {
            "generation": 1, "because": "rank 1 was killed by SIGKILL", "end_class": "process_killed", "node": "gpu-1",
            "step": 37,
        }),
        (65, "training.started", first.id, {"step": 20}),
        (70, "phase.finished", first.id, {"phase": "first_step", "seconds": 1}),
        (80, "checkpoint.saved", first.id, {"step": 40, "seconds": 0, "blocked_seconds": 0, "final": False}),
        (110, "job.status", "dispatch", {"to": "queued", "reason": "node_lost", "attempt": first.id}),
        (115, "job.status", "scheduling", {"to": "admitted"}),
        (116, "job.status", "dispatch", {"to": "dispatching", "attempt": second.id, "number": 2}),
        (118, "job.status", "dispatch", {"to": "starting"}),
        (128, "training.started", second.id, {"step": 40}),
        (130, "phase.finished", second.id, {"phase": "first_step", "seconds": 1}),
        (131, "job.status", "dispatch", {"to": "running"}),
        (200, "job.status", "dispatch", {"to": "succeeded", "reason": "completed", "attempt": second.id}),
    ])  # fmt: skip
    job = Job.objects.select_related("pool__cluster").get(pk=job.pk)
    with transaction.atomic():
        refunds.refund_lost_work(first, job, at(80))
        assert meter.close(second) is not None
    return job


@pytest.fixture
def shrunken(submit: Callable[..., Job], pool: Pool) -> Job:
    """A job of two nodes and a spare one, of two slots each, from 10 s to 110 s. Both nodes are lost at 70 s, and it
    continues on the spare one at 80 s. It reports what are no nodes as well."""
    Pool.objects.filter(pk=pool.pk).update(price_per_slot_hour=PRICE, nodes=3, slots_per_node=2)
    pool.refresh_from_db()
    nodes = {"nodes": 2, "spare_nodes": 1, "min_nodes": 1, "processes_per_node": 2, "cluster": "fake"}
    job = submit(resources=nodes)
    assert job.slots == 6
    Job.objects.filter(pk=job.pk).update(created_at=NOON, finished_at=at(110), status="succeeded", reason="completed")
    JobEvent.objects.filter(job=job).delete()
    only = attempt(job, 1, 10, 110, "completed", last_step=90)
    write(job, [
        (6, "job.status", "dispatch", {"to": "dispatching", "attempt": only.id, "number": 1}),
        (8, "job.status", "dispatch", {"to": "starting"}),
        (15, "nodes.placed", only.id, {"round": 1, "nodes": ["n0", "n1"], "switches": 0}),
        *((16, "nodes.placed", only.id, {"nodes": nodes}) for nodes in ([], None, 1, "n0")),
        (18, "training.started", only.id, {"step": 0}),
        (20, "phase.finished", only.id, {"phase": "first_step", "seconds": 2}),
        (21, "job.status", "dispatch", {"to": "running"}),
        (50, "checkpoint.saved", only.id, {"step": 20, "seconds": 0, "blocked_seconds": 0, "final": False}),
        (70, "generation.started", only.id, {"generation": 1, "end_class": "node_lost", "node": "n0", "step": 40}),
        (80, "nodes.placed", only.id, {"round": 2, "nodes": ["n2"], "switches": 0}),
        (83, "training.started", only.id, {"step": 20}),
        (85, "phase.finished", only.id, {"phase": "first_step", "seconds": 1}),
        (110, "job.status", "dispatch", {"to": "succeeded", "reason": "completed", "attempt": only.id}),
    ])  # fmt: skip
    assert meter.close(only) is not None
    return Job.objects.select_related("pool__cluster").get(pk=job.pk)


IN_SHRUNKEN = {
    "startup": 5 * 6 + 5 * 4 + 10 * 4 + 5 * 2, "training": 30 * 4 + 25 * 2, "lost": 20 * 4, "idle": 65 * 2 + 30 * 4,
}  # fmt: skip
"""The slot-seconds of its activities: two slots are idle from 15 s to 80 s, then four."""


def test_a_restart_on_more_nodes_is_caused_by_the_node_that_joined(shrunken: Job, api: Api) -> None:
    (only,) = shrunken.attempts.all()
    stopped = {"generation": 2, "end_class": "stopped", "because": "a node has joined", "node": "n2", "step": 60}
    grown = {"round": 3, "nodes": 2, "of": 2, "before": 1}
    write(shrunken, [(95, "generation.started", only.id, stopped), (97, "attempt.grown", only.id, grown)], 100)
    lost, joined = goodput_of(api, shrunken)["interruptions"]
    assert lost["node"] == "n0"
    assert (joined["reason"]["code"], joined["node"]) == ("node_joined", None)


def test_slots_of_spare_and_lost_nodes_are_idle(shrunken: Job, api: Api) -> None:
    found = goodput_of(api, shrunken)
    assert {each["activity"]: each["slot_seconds"] for each in found["categories"]} == IN_SHRUNKEN
    assert {each["activity"]: each["cost"] for each in found["categories"]} == {
        activity: spent * 1000 for activity, spent in IN_SHRUNKEN.items()
    }
    assert found["goodput"] == pytest.approx(IN_SHRUNKEN["training"] / 600)
    (restart,) = found["interruptions"]
    assert (restart["lost_slot_seconds"], restart["startup_slot_seconds"]) == (20 * 4, 10 * 4 + 5 * 2)
    assert restart["cost"] == (20 * 4 + 10 * 4 + 5 * 2) * 1000
    breakdown = api.get(f"/api/v1/jobs/{shrunken.id}/timeline").json()
    assert {span["activity"] for span in breakdown["spans"]} == {"queued", "startup", "training", "lost"}
    assert "idle_seconds" not in breakdown["timings"], "it is of wall time"


def attempt(job: Job, number: int, launched: float, ended: float, reason: str, last_step: int) -> Attempt:
    return Attempt.objects.create(
        job=job, number=number, backend_name=f"{job.id}-{number}", launched_at=at(launched), ended_at=at(ended),
        status="ended", reason=reason, native_nodes=["gpu-2"], end_report={"last_step": last_step, "node_rank": 0},
    )  # fmt: skip


def write(job: Job, events: list[tuple[float, str, str, dict[str, Any]]], first: int = 1) -> None:
    JobEvent.objects.bulk_create(
        JobEvent(job=job, team_id=job.team_id, seq=seq, type=kind, time=at(second), actor=actor, data=data)
        for seq, (second, kind, actor, data) in enumerate(events, first)
    )


def goodput_of(api: Api, job: Job) -> dict[str, Any]:
    """Return the ledger of a job, after checking that it adds up, and to its meters."""
    found: dict[str, Any] = api.get(f"/api/v1/jobs/{job.id}/goodput").json()
    cost = api.get(f"/api/v1/jobs/{job.id}/cost").json()
    assert (found["cost"], found["refunded"], found["charged"]) == (cost["cost"], cost["fault_cost"], cost["charged"])
    for ledger in (found, *found["attempts"]):
        assert round(sum(each["slot_seconds"] for each in ledger["categories"]), 6) == ledger["slot_seconds"]
        assert sum(each["cost"] for each in ledger["categories"]) == ledger["cost"]
        assert sum(each["share"] for each in ledger["categories"]) == pytest.approx(1 if ledger["categories"] else 0)
        for each in ledger["categories"]:
            if each["activity"] == "startup":
                assert round(sum(phase["slot_seconds"] for phase in each["phases"]), 6) == each["slot_seconds"]
                assert sum(phase["cost"] for phase in each["phases"]) == each["cost"]
    assert found["slot_seconds"] == round(sum(each["slot_seconds"] for each in found["attempts"]), 6)
    for each in found["attempts"]:
        row = Attempt.objects.get(job=job, number=each["attempt"])
        assert row.launched_at is not None
        wall = (row.ended_at or datetime.fromisoformat(each["end"])) - row.launched_at
        assert each["slot_seconds"] == round(each["slots"] * wall.total_seconds(), 6)
        assert each["cost"] == Meter.objects.get(attempt=row).cost
    return found


def test_the_ledger_adds_up_to_the_meters_and_names_the_causes(interrupted: Job, api: Api) -> None:
    found = goodput_of(api, interrupted)
    seconds = {each["activity"]: each["slot_seconds"] / SLOTS for each in found["categories"]}
    assert seconds == {"startup": 10 + 10 + 10, "training": 19 + 10 + 69, "checkpoint": 1, "lost": 20 + 30}
    assert found["goodput"] == pytest.approx(98 / 179)
    assert {each["activity"]: each["cost"] for each in found["categories"]} == {
        activity: spent * SLOTS * 1000 for activity, spent in seconds.items()
    }
    killed, lost = found["interruptions"]
    assert (killed["in_place"], killed["reason"]["code"], killed["reason"]["blame"]) == (
        True, "process_killed", "infrastructure",
    )  # fmt: skip
    assert (killed["node"], killed["steps_lost"], killed["refunded"]) == ("gpu-1", 17, 0)
    assert killed["reason"]["message"].endswith("Rank 1 was killed by SIGKILL")
    assert (killed["lost_slot_seconds"], killed["startup_slot_seconds"]) == (20 * SLOTS, 10 * SLOTS)
    assert killed["cost"] == 30 * SLOTS * 1000
    assert (lost["in_place"], lost["reason"]["code"], lost["node"], lost["steps_lost"]) == (
        False, "node_lost", "gpu-2", 20,
    )  # fmt: skip
    assert (lost["lost_slot_seconds"], lost["startup_slot_seconds"]) == (30 * SLOTS, 10 * SLOTS)
    assert lost["refunded"] == found["refunded"] == 30 * SLOTS * 1000


def test_what_was_metered_at_another_price_has_that_price(interrupted: Job, api: Api) -> None:
    """An attempt that crosses an hour at which the price doubled."""
    later = timedelta(minutes=59, seconds=50) - timedelta(seconds=130)
    row = Meter.objects.get(attempt__number=2)
    UsageHour.objects.filter(job=interrupted).delete()
    Attempt.objects.filter(pk=row.attempt_id).update(launched_at=at(120) + later, ended_at=at(199) + later)
    for event in JobEvent.objects.filter(job=interrupted, seq__gte=13):
        JobEvent.objects.filter(pk=event.pk).update(time=event.time + later)
    Job.objects.filter(pk=interrupted.pk).update(finished_at=at(200) + later)
    Meter.objects.filter(pk=row.pk).update(
        began_at=at(120) + later, metered_until=at(199) + later, cost=(20 * 1000 + 59 * 2000) * SLOTS
    )
    base = UsageHour(
        job=interrupted, team_id=interrupted.team_id, project="p", pool=interrupted.pool, accelerator="cpu"
    )
    for hour, spent, price in ((0, 120, 1000), (1, 59, 2000)):
        base.pk = None
        base.hour, base.slot_seconds, base.cost = NOON + timedelta(hours=hour), spent * SLOTS, spent * price * SLOTS
        base.save(force_insert=True)
    second = goodput_of(api, interrupted)["attempts"][1]
    costs = {each["activity"]: each["cost"] for each in second["categories"]}
    assert costs == {"startup": 10 * 1000 * SLOTS, "training": (10 * 1000 + 59 * 2000) * SLOTS}


def test_the_newest_interval_of_checkpoints_is_shown_unless_it_is_none(submit: Callable[..., Job], api: Api) -> None:
    fixed, job = submit(), submit(checkpoint={"every_minutes": "auto"})
    assert goodput_of(api, job)["checkpoint_interval"] is None, "no save was measured yet"
    chosen = {"minutes": 12.5, "stall_seconds": 0.25, "slowdown_seconds": 0, "mean_hours_between_failures": 100}
    older = (10, "checkpoint.interval", "att_1", {**chosen, "minutes": 30})
    for each in (fixed, job):
        JobEvent.objects.filter(job=each).delete()
        write(each, [older, (20, "checkpoint.interval", "att_1", {**chosen, "another": 1})])
    shown = goodput_of(api, job)["checkpoint_interval"]
    assert shown == {**chosen, "chosen_at": at(20).isoformat().replace("+00:00", "Z")}
    assert goodput_of(api, fixed)["checkpoint_interval"] is None
    for wrong in ({}, {**chosen, "minutes": "many"}, {**chosen, "minutes": None}):
        JobEvent.objects.filter(job=job, seq=2).update(data=wrong)
        assert goodput_of(api, job)["checkpoint_interval"] is None


def test_another_team_does_not_see_it_and_a_job_without_launch_has_an_empty_one(
    submit: Callable[..., Job], api: Api, make_user: Callable[..., User], api_of: Callable[..., Api], other_team: Team
) -> None:
    job = submit()
    stranger = api_of(make_user("bob", other_team), other_team)
    assert stranger.get(f"/api/v1/jobs/{job.id}/goodput").status_code == 404
    found = goodput_of(api, job)
    assert (found["goodput"], found["slot_seconds"], found["categories"], found["attempts"]) == (None, 0, [], [])


def test_a_live_attempt_is_accounted_for_until_now(
    world: World, submit: Callable[..., Job], api: Api, bucket: str
) -> None:
    job = submit()
    attempt = drive.run(job)
    meter.count_due(datetime.now(UTC))
    found = goodput_of(api, job)
    assert datetime.fromisoformat(found["attempts"][0]["end"]) > datetime.fromisoformat(found["attempts"][0]["start"])
    assert found["interruptions"] == []
    drive.end(world, attempt, EndClass.COMPLETED)
    assert goodput_of(api, job)["interruptions"] == []


def test_the_number_of_queries_does_not_grow_with_the_events(interrupted: Job, api: Api) -> None:
    """A long run: 4000 checkpoints, as many evaluations, and 500 restarts in place."""
    path = f"/api/v1/jobs/{interrupted.id}/goodput"
    api.get(path)
    with CaptureQueriesContext(connection) as few:
        api.get(path)
    actor = JobEvent.objects.get(job=interrupted, seq=4).actor
    rows = [
        (21 + number / 200, kind, actor, {"step": number, "seconds": 0.001, "generation": number})
        for number in range(4000)
        for kind in ("checkpoint.saved", "evaluation", *(["generation.started"] if number % 8 == 0 else []))
    ]
    JobEvent.objects.bulk_create(
        JobEvent(job=interrupted, team_id=interrupted.team_id, seq=seq, type=kind, time=at(second), actor=by, data=data)
        for seq, (second, kind, by, data) in enumerate(rows, 1000)
    )
    with CaptureQueriesContext(connection) as many:
        assert len(api.get(path).json()["interruptions"]) == 502
    assert len(many) == len(few)
    goodput_of(api, interrupted)
