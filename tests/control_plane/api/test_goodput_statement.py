"""The goodput of teams: it sums to the costs, whatever ran, and jobs of other teams are not shown."""

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from athanor.accounts.models import Team, User
from athanor.accounts.roles import Scope
from athanor.accounts.services import issue_token
from athanor.budgets import goodput_hours, meter, refunds
from athanor.budgets.models import JobGoodput, UsageHour, UsagePart
from athanor.clusters.models import Pool
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.reasons import Reason
from tests.control_plane.api.test_goodput import (  # noqa: F401 - fixtures
    IN_SHRUNKEN,
    NOON,
    SLOTS,
    at,
    interrupted,
    shrunken,
    write,
)
from tests.control_plane.conftest import Api
from tests.examples import examples

pytestmark = pytest.mark.django_db

RANGE = "after=2026-03-01T00:00:00Z&before=2026-04-01T00:00:00Z"


def statement(api: Api, query: str = RANGE) -> Any:
    """Return the statement of the one currency, after checking that it adds up, and to the costs."""
    answer = api.send("GET", f"goodput?{query}")
    assert answer.status_code == 200, answer.content
    (found,) = answer.json()["items"]
    for name in ("slot_seconds", "cost"):
        assert sum(each[name] for each in found["categories"]) + found["uncounted"][name] == found[name]
        assert found["uncounted"][name] >= 0
        for each in found["categories"]:
            if each["activity"] == "startup":
                assert sum(phase[name] for phase in each["phases"]) == each[name]
    assert found["charged"] == found["cost"] - found["refunded"]
    return found


def compare_with_costs(api: Api, found: Any, query: str = RANGE) -> None:
    (costs,) = api.send("GET", f"costs?{query}").json()["items"]
    assert [found[name] for name in ("currency", "slot_seconds", "cost", "charged", "refunded")] == [
        costs[name] for name in ("currency", "slot_seconds", "cost", "charged", "fault_cost")
    ]


def test_the_statement_sums_to_the_costs_and_names_the_causes(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    before = statement(api)
    compare_with_costs(api, before)
    assert (before["goodput"], before["categories"]) == (None, [])
    assert before["uncounted"]["slot_seconds"] == 179 * SLOTS

    goodput_hours.count_due()
    found = statement(api)
    compare_with_costs(api, found)
    assert found["uncounted"] == {"slot_seconds": 0, "cost": 0}
    seconds = {each["activity"]: each["slot_seconds"] / SLOTS for each in found["categories"]}
    assert seconds == {"startup": 30, "training": 98, "checkpoint": 1, "lost": 50}
    assert found["goodput"] == pytest.approx(98 / 179)
    assert {each["activity"]: each["cost"] for each in found["categories"]} == {
        activity: spent * SLOTS * 1000 for activity, spent in seconds.items()
    }
    lost, killed = found["interruptions"]
    assert (killed["reason"]["code"], killed["attempts"], killed["restarts"], killed["steps_lost"]) == (
        "process_killed", 0, 1, 17,
    )  # fmt: skip
    assert (lost["reason"]["code"], lost["reason"]["blame"], lost["attempts"], lost["restarts"]) == (
        "node_lost", "infrastructure", 1, 0,
    )  # fmt: skip
    assert (lost["lost_slot_seconds"], lost["startup_slot_seconds"], lost["steps_lost"]) == (30 * SLOTS, 10 * SLOTS, 20)
    assert (lost["refunded"], killed["refunded"]) == (found["refunded"], 0) == (30 * SLOTS * 1000, 0)
    assert found["jobs"] == [
        {
            "id": interrupted.id, "name": interrupted.name, "slot_seconds": 179 * SLOTS, "cost": 179 * SLOTS * 1000,
            "unproductive_slot_seconds": 81 * SLOTS, "unproductive_cost": 81 * SLOTS * 1000,
        }
    ]  # fmt: skip
    assert JobGoodput.objects.get().final
    assert not goodput_hours.due(datetime.now(UTC)).exists()
    assert statement(api, f"{RANGE}&team={interrupted.team.name}&project={interrupted.project}") == found
    assert api.send("GET", f"goodput?{RANGE}&project=another").json()["items"] == []


def test_idle_slots_are_not_productive(shrunken: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    goodput_hours.count_due()
    found = statement(api)
    compare_with_costs(api, found)
    assert {each["activity"]: each["slot_seconds"] for each in found["categories"]} == IN_SHRUNKEN
    assert {each["activity"]: each["cost"] for each in found["categories"]} == {
        activity: spent * 1000 for activity, spent in IN_SHRUNKEN.items()
    }
    assert found["goodput"] == pytest.approx(IN_SHRUNKEN["training"] / 600)
    assert [each["unproductive_slot_seconds"] for each in found["jobs"]] == [600 - IN_SHRUNKEN["training"]]


def test_what_was_metered_since_is_apart_until_it_is_divided(interrupted: Job, api: Api) -> None:  # noqa: F811 - the imported fixture
    Job.objects.filter(pk=interrupted.pk).update(status="running", finished_at=None)
    goodput_hours.count_due()
    row = JobGoodput.objects.get()
    assert not row.final
    assert row.counted_at is not None
    assert row.due_at - row.counted_at == goodput_hours.MAX_INTERVAL
    UsageHour.objects.filter(job=interrupted).update(slot_seconds=800, cost=800_000)
    found = statement(api)
    compare_with_costs(api, found)
    assert found["uncounted"] == {"slot_seconds": 800 - 179 * SLOTS, "cost": 800_000 - 179 * SLOTS * 1000}
    Job.objects.filter(pk=interrupted.pk).update(status="succeeded", finished_at=at(200))
    goodput_hours.count_due()
    assert statement(api)["uncounted"] == {"slot_seconds": 0, "cost": 0}


def test_jobs_of_other_teams_are_summed_for_who_sees_all_costs_and_refused_to_others(
    interrupted: Job,  # noqa: F811 - the imported fixture
    make_user: Callable[..., User],
    api_of: Callable[..., Api],
    other_team: Team,
) -> None:
    goodput_hours.count_due()
    sam = make_user("sam", other_team)
    stranger = api_of(sam, other_team)
    assert stranger.send("GET", f"goodput?{RANGE}").json()["items"] == []
    refused = stranger.send("GET", f"goodput?{RANGE}&team={interrupted.team_id}")
    (error,) = refused.json()["errors"]
    assert (refused.status_code, error["pointer"], error["code"]) == (422, "/team", "unknown_team")
    User.objects.filter(pk=sam.pk).update(platform_role="auditor")
    sam.refresh_from_db()
    auditor = Api()
    token = issue_token(sam, other_team, "x", scopes=[Scope.READ, Scope.PLATFORM_AUDIT])[1]
    auditor.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    found = statement(auditor, f"{RANGE}&team={interrupted.team.name}")
    assert [(each["id"], each["name"]) for each in found["jobs"]] == [(None, None)]
    assert found["slot_seconds"] == 179 * SLOTS
    assert interrupted.id not in auditor.send("GET", f"goodput?{RANGE}").content.decode()


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_parts_sum_to_the_usage_whatever_ran(seed: int, submit: Callable[..., Job], pool: Pool, api: Api) -> None:
    """Attempts over several hours with odd prices and clocks, of which events are missing; a part is refunded."""
    chance = random.Random(seed)
    with transaction.atomic():
        Pool.objects.update(price_per_slot_hour="0.7123", nodes=4)
        pool.refresh_from_db()
        for _ in range(2):
            nodes = chance.randint(2, 3)
            job = submit(resources={"nodes": nodes, "spare_nodes": 1, "processes_per_node": 1, "cluster": "fake"})
            slots = chance.randint(1, 5)
            Job.objects.filter(pk=job.pk).update(created_at=NOON, slots=slots, status="failed", finished_at=at(30_000))
            job = Job.objects.select_related("pool__cluster", "team").get(pk=job.pk)
            clock, events = chance.uniform(0, 4000), []
            for number in range(1, chance.randint(2, 4)):
                launched, ended = clock, clock + chance.uniform(0.1, 9000)
                row = Attempt.objects.create(
                    job=job, number=number, backend_name=f"{job.id}-{number}", launched_at=at(launched),
                    ended_at=at(ended), status="ended", reason=chance.choice(list(Reason)).value,
                    end_report={"last_step": chance.randint(0, 50), "node_rank": 0},
                )  # fmt: skip
                events += [
                    (launched, "job.status", "dispatch", {"to": "dispatching", "attempt": row.id, "number": number}),
                    (launched, "job.status", "dispatch", {"to": "starting"}),
                    (launched + 3, "training.started", row.id, {"step": 0}),
                    (launched + 5, "phase.finished", row.id, {"phase": "first_step", "seconds": 1}),
                    (launched + 6, "job.status", "dispatch", {"to": "running"}),
                    (chance.uniform(launched, ended), "generation.started", row.id, {
                        "generation": 1, "end_class": "process_killed", "step": 30,
                    }),
                    (chance.uniform(launched, ended), "checkpoint.saved", row.id, {"step": 9, "blocked_seconds": 4}),
                    *(
                        (chance.uniform(launched, ended), "nodes.placed", row.id, {"nodes": ["n"] * count})
                        for count in chance.sample(range(6), 2)
                    ),
                    (ended, "job.status", "dispatch", {"to": "queued"}),
                ]  # fmt: skip
                clock = ended + chance.uniform(0, 600)
            JobEvent.objects.filter(job=job).delete()
            write(job, [event for event in events if chance.random() < 0.85])
            for row in job.attempts.all():
                if chance.random() < 0.5:
                    refunds.refund_lost_work(row, job, row.launched_at and row.launched_at + timedelta(seconds=60))
                else:
                    meter.close(row)
        goodput_hours.count_due()
        for usage in UsageHour.objects.prefetch_related("parts", "interruptions"):
            parts, causes = usage.parts.all(), usage.interruptions.all()
            assert sum(part.slot_seconds for part in parts) == usage.slot_seconds
            assert sum(part.cost for part in parts) == usage.cost
            assert sum(each.refunded for each in causes) == usage.fault_cost
            assert all(part.slot_seconds >= 0 and part.cost >= 0 for part in parts)
        found = statement(api)
        compare_with_costs(api, found)
        assert sum(each["refunded"] for each in found["interruptions"]) == found["refunded"]
        assert UsagePart.objects.exists() == (found["slot_seconds"] > 0)
        transaction.set_rollback(True)
