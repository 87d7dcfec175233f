"""Queues of pools and usage by day; of other teams only totals."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.budgets.models import UsageHour
from athanor.clusters.models import Pool
from athanor.jobs.models import Job
from athanor.quotas import selectors
from athanor.quotas.models import NominalChange
from athanor.scheduling import quota_history
from tests.control_plane import drive
from tests.control_plane.conftest import SPEC, Api

pytestmark = pytest.mark.django_db


def wait_facts(position: int, **more: Any) -> dict[str, Any]:
    return {"position": position, "of": 2, "unblocks": "Soon.", "starts_in_seconds": 60, "at": 1_800_000_000, **more}


def test_the_queue_of_a_pool_is_in_the_order_of_admission(api: Api, submit: Callable[..., Job]) -> None:
    drive.start(submit(name="runs", resources={"cluster": "fake", "processes_per_node": 8}))
    first, second, third = (submit(name=name) for name in ("first", "second", "third"))
    Job.objects.filter(pk=first.pk).update(
        waiting=wait_facts(2), reason="waiting_for_capacity", reason_detail="0 are free."
    )
    blocker = {"kind": "quota", "name": "research", "lacking": 3}
    Job.objects.filter(pk=second.pk).update(waiting=wait_facts(1, blocker=blocker, p50_seconds=5, p90_seconds=9))
    queue = api.send("GET", "queue").json()["items"][0]
    assert (queue["pool"], queue["slots"], queue["slots_used"]) == ("fake/cpu", 8, 8)
    assert (queue["waiting_jobs"], queue["waiting_slots"], queue["waiting_teams"]) == (3, 3, 1)
    assert [job["name"] for job in queue["jobs"]] == ["second", "first", "third"], "no decision on the third yet"
    head, next_, last = queue["jobs"]
    assert head["wait"]["blocker"] == {**blocker, "held_by": [], "own_jobs": []}
    assert (head["wait"]["p50_seconds"], head["wait"]["p90_seconds"], head["wait"]["of"]) == (5, 9, 2)
    assert next_["wait"]["at"] == "2027-01-15T08:00:00Z"
    assert "0 are free." in next_["reason"]["message"]
    assert last["wait"] is None
    assert [job["name"] for job in api.send("GET", "queue?limit=1").json()["items"][0]["jobs"]] == ["second"]
    assert api.send("GET", "queue?pool=none/such").json()["items"] == []
    shown = api.send("GET", f"jobs/{second.id}").json()
    assert shown["wait"]["unblocks"] == "Soon."
    running = Job.objects.get(name="runs")
    Job.objects.filter(pk=running.pk).update(waiting=wait_facts(1))
    assert api.send("GET", f"jobs/{running.id}").json()["wait"] is None, "it waits no longer"


def test_of_other_teams_members_see_sums_and_the_platform_sees_no_names(
    submit: Callable[..., Job], api_of: Callable, make_user: Callable, other_team: Team, admin: Api, team: Team
) -> None:
    job = submit(name="secret-plan")
    member = api_of(make_user("bo", other_team), other_team)
    seen = member.send("GET", "queue")
    queue = seen.json()["items"][0]
    assert (queue["waiting_jobs"], queue["waiting_slots"], queue["jobs"]) == (1, 1, [])
    assert job.id not in seen.content.decode()
    whole = admin.send("GET", "queue").json()["items"][0]["jobs"]
    assert [(each["id"], each["name"], each["mine"], each["team"]["name"]) for each in whole] == [
        (job.id, None, False, "red")
    ]


def hour(team: Team, pool: Pool, at: datetime, slots: float) -> None:
    UsageHour.objects.create(
        team=team, project="default", pool=pool, accelerator=pool.accelerator,
        hour=at.replace(minute=0, second=0, microsecond=0), slot_seconds=int(slots * 3600),
    )  # fmt: skip


def test_days_are_averages_over_subtrees_and_today_until_now(
    change: Callable, team: Team, other_team: Team, pool: Pool
) -> None:
    change(
        {"action": "create", "node": "research", "grants": {"h100": {"nominal": 2}}},
        {"node": "red", "parent": "research", "grants": {"cpu": {"nominal": 3}}},
        {"node": "blue", "parent": "research"},
    )
    now = datetime(2026, 5, 10, 6, 0, tzinfo=UTC)
    for at in range(24):
        hour(team, pool, now.replace(hour=at) - timedelta(days=1), 2)
    hour(other_team, pool, now.replace(hour=3), 6)
    hour(team, pool, now - timedelta(days=3), 100)
    tree = selectors.tree()
    found = quota_history.history(tree, now, 3)
    lines = {tree[node_id].name: {line.accelerator: line for line in row.lines} for node_id, row in found.items()}
    assert lines["red"]["cpu"].used == [0, 2, 0]
    assert lines["blue"]["cpu"].used == [0, 0, 1], "six hours of today are over, in one of them it held six"
    assert lines["research"]["cpu"].used == [0, 2, 1]
    assert (lines["research"]["cpu"].nominal, lines["research"]["h100"].nominal) == ([3] * 3, [2] * 3)
    assert lines["organisation"]["h100"].used == [0, 0, 0]


def test_the_past_of_a_quota_is_what_it_was(change: Callable, team: Team, other_team: Team) -> None:
    """Usage of a group is that of the nodes below it at that time, also after nodes have moved."""
    now = datetime(2020, 5, 10, 6, 0, tzinfo=UTC)

    def changed(days_ago: float, *wishes: dict[str, Any]) -> None:
        change(*wishes)
        NominalChange.objects.filter(time__gt=now).update(time=now - timedelta(days=days_ago))

    changed(9, {"node": "red", "grants": {"h100": {"nominal": 1}}})
    changed(3, {"action": "create", "node": "research"}, {"node": "red", "grants": {"h100": {"nominal": 4}}})
    changed(2.9, {"node": "red", "parent": "research"}, {"node": "blue", "grants": {"h100": {"nominal": 2}}})
    changed(1, {"node": "research/red", "grants": {"h100": None}})
    tree = selectors.tree()
    found = quota_history.history(tree, now, 5)
    lines = {tree[node_id].name: {line.accelerator: line for line in row.lines} for node_id, row in found.items()}
    assert lines["red"]["h100"].nominal == [1, 4, 4, 0, 0]
    assert lines["research"]["h100"].nominal == [0, 4, 4, 0, 0]
    assert lines["blue"]["h100"].nominal == [0, 2, 2, 2, 2]
    assert lines["organisation"]["h100"].nominal == [1, 6, 6, 2, 2]


def test_members_see_the_days_of_their_path_alone(
    api: Api, user: User, team: Team, other_team: Team, pool: Pool
) -> None:
    hour(team, pool, timezone.now(), 1)
    seen = api.send("GET", "quotas/usage?days=2").json()
    assert len(seen["days"]) == 2
    shown = {node["id"] for node in seen["nodes"]}
    assert shown == {node.id for node in selectors.path_of_team(team)}
    assert api.send("GET", "quotas/usage?days=0").json()["errors"][0]["pointer"] == "/days"


def test_a_large_tree_is_answered_in_few_statements(
    admin: Api, change: Callable, team: Team, django_assert_max_num_queries: Any
) -> None:
    change(*({"action": "create", "node": f"g{number}", "grants": {"cpu": {"nominal": 1}}} for number in range(40)))
    with django_assert_max_num_queries(20):
        assert len(admin.send("GET", "quotas").json()["nodes"]) == 43
    with django_assert_max_num_queries(24):
        assert admin.send("GET", "quotas/usage").status_code == 200


def test_submitting_takes_few_statements_more_where_nothing_is_limited(
    api: Api, pool: Pool, team: Team, django_assert_max_num_queries: Any
) -> None:
    api.send("POST", "jobs", SPEC)
    with django_assert_max_num_queries(28):
        assert api.send("POST", "jobs", SPEC).status_code == 201
