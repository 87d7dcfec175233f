"""The quota tree over the API: rights to read and change it, audit records, usage."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts import members
from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import Scope
from athanor.accounts.services import issue_token
from athanor.budgets.models import Budget
from athanor.clusters.models import Pool
from athanor.jobs.models import Job
from athanor.quotas import selectors
from athanor.quotas.models import QuotaNode
from tests.control_plane import drive
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db


def share(node: dict[str, Any], accelerator: str = "cpu") -> dict[str, Any]:
    return next(each for each in node["shares"] if each["accelerator"] == accelerator)


def test_a_tree_is_made_and_is_on_record(change: Callable, admin: Api, team: Team) -> None:
    nodes = change(
        {"action": "create", "node": "research", "grants": {"cpu": {"nominal": 4}}, "weight": 1.5},
        {"node": "red", "parent": "research", "grants": {"cpu": {"nominal": 2, "lend_limit": 1}}, "max_slots": 8},
    )
    assert list(nodes) == ["organisation", "blue", "research", "research/red"]
    assert (nodes["research"]["kind"], nodes["research"]["weight"]) == ("group", 1.5)
    red = nodes["research/red"]
    assert (red["team"], red["max_slots"], red["max_queued_jobs"]) == ({"id": team.id, "name": "red"}, 8, None)
    assert red["grants"] == [{"accelerator": "cpu", "nominal": 2, "borrow_limit": None, "lend_limit": 1}]
    assert share(nodes["research"])["nominal"] == 6, "of the subtree"
    made, moved = AuditEvent.objects.filter(action__startswith="quota.").order_by("action")
    moved, made = (made, moved) if made.action == "quota.change" else (moved, made)
    assert (made.action, made.after["path"], made.after["cpu.nominal"]) == ("quota.create", "research", 4)
    assert (moved.team_id, moved.before["path"], moved.after["path"]) == (team.id, "red", "research/red")
    assert (moved.before["max_slots"], moved.after["max_slots"]) == (None, 8)


def test_nothing_is_changed_by_changes_of_which_one_is_wrong(admin: Api, team: Team) -> None:
    wishes = [{"node": "red", "max_slots": 1}, {"node": "rde", "max_slots": 1}]
    answer = admin.send("PATCH", "quotas", {"changes": wishes})
    assert answer.status_code == 422
    body = answer.json()
    assert [error["pointer"] for error in body["errors"]] == ["/changes/1/node"]
    assert "did you mean red?" in body["errors"][0]["detail"]
    assert not QuotaNode.objects.filter(max_slots=1).exists()
    assert not AuditEvent.objects.filter(action__startswith="quota.").exists()


def test_an_accelerator_that_no_pool_has_is_refused_with_the_nearest(admin: Api, change: Callable, team: Team) -> None:
    typo = {"node": "red", "grants": {"h10O": {"nominal": 1}}}
    for method, path in (("PATCH", "quotas"), ("POST", "quotas:preview")):
        answer = admin.send(method, path, {"changes": [typo]})
        assert answer.status_code == 422, answer.content
        (problem,) = answer.json()["errors"]
        assert (problem["pointer"], problem["code"]) == ("/changes/0/grants/h10O", "unknown_accelerator")
        assert problem["detail"] == "no pool has the accelerator 'h10O'; did you mean h100?"
    answer = admin.send("PUT", "quotas", {"organisation": {"teams": {"red": {"grants": {"1": {"nominal": 0}}}}}})
    (problem,) = answer.json()["errors"]
    assert problem["pointer"] == "/organisation/teams/red/grants/1"
    assert problem["detail"] == (
        "no pool has the accelerator '1'; name one of cpu, h100, or register a cluster with a pool of it"
    )
    change({"node": "red", "grants": {"h100": {"nominal": 1}}})
    Pool.objects.filter(accelerator="h100").delete()
    change({"node": "red", "grants": {"h100": {"nominal": 2}}})  # a grant outlives its pool


def test_unknown_fields_are_named(admin: Api, team: Team) -> None:
    answer = admin.send(
        "PATCH", "quotas", {"changes": [{"node": "red", "max_slot": 1, "grants": {"cpu": {"nomnal": 1}}}]}
    )
    body = {error["pointer"]: error["detail"] for error in answer.json()["errors"]}
    assert "did you mean 'max_slots'" in body["/changes/0/max_slot"]
    assert "did you mean 'nominal'" in body["/changes/0/grants/cpu/nomnal"]


def test_who_read_an_old_tree_changes_none(admin: Api, change: Callable, team: Team, other_team: Team) -> None:
    tag = admin.send("GET", "quotas")["ETag"]
    change({"node": "red", "max_slots": 3})
    late = admin.send("PATCH", "quotas", {"changes": [{"node": "blue", "max_slots": 1}]}, if_match=tag)
    assert (late.status_code, late.json()["code"]) == (412, "changed")
    fresh = admin.send("GET", "quotas")["ETag"]
    assert (
        admin.send("PATCH", "quotas", {"changes": [{"node": "blue", "max_slots": 1}]}, if_match=fresh).status_code
        == 200
    )
    assert AuditEvent.objects.filter(action="quota.change").count() == 2


def test_a_whole_tree_is_declared_and_read_back(admin: Api, change: Callable, team: Team, other_team: Team) -> None:
    document = {
        "organisation": {
            "grants": {"cpu": {"nominal": 1}},
            "groups": {
                "research": {"max_slots": 6, "teams": {"red": {"grants": {"cpu": {"nominal": 2, "borrow_limit": 0}}}}},
                "field": {"weight": 2.0, "teams": {"blue": {}}},
            },
        }
    }
    assert admin.send("PUT", "quotas", document).status_code == 200
    read = admin.send("GET", "quotas/document")
    assert read.json() == document
    version = QuotaNode.objects.get(parent=None).version
    assert admin.send("PUT", "quotas", read.json(), if_match=read["ETag"]).status_code == 200
    assert QuotaNode.objects.get(parent=None).version == version, "what changes nothing is no change"
    preview = admin.send("POST", "quotas:preview", {"organisation": {"teams": {"red": {}, "blue": {}}}}).json()
    assert (
        preview["differences"][-2:] == ["- research", "  research/red -> red"] or "- research" in preview["differences"]
    )
    assert QuotaNode.objects.filter(name="research").exists(), "a preview changes nothing"


def test_used_borrowed_and_lent(change: Callable, submit: Callable[..., Job], team: Team, other_team: Team) -> None:
    change(
        {"action": "create", "node": "research"},
        {"node": "red", "parent": "research", "grants": {"cpu": {"nominal": 2, "borrow_limit": 1}}},
        {"node": "blue", "parent": "research", "grants": {"cpu": {"nominal": 6}}},
    )
    drive.start(submit(resources={"cluster": "fake", "processes_per_node": 3}))
    submit(name="second")
    nodes = change({"node": "research", "weight": 2})
    red, blue, research = (nodes[path] for path in ("research/red", "research/blue", "research"))
    assert {name: share(red)[name] for name in ("nominal", "used", "borrowed", "lent", "available", "teams")} == {
        "nominal": 2, "used": 3, "borrowed": 1, "lent": 0, "available": 0, "teams": 1,
    }  # fmt: skip
    assert (share(blue)["lent"], share(blue)["available"]) == (1, 5)
    assert (share(research)["used"], share(research)["borrowed"], share(research)["nominal"]) == (3, 0, 8)
    assert (research["running_jobs"], research["queued_jobs"], research["slots_used"]) == (1, 1, 3)


def test_an_accelerator_without_a_grant_is_not_governed(
    change: Callable, submit: Callable[..., Job], team: Team
) -> None:
    drive.start(submit())
    red = change({"node": "red", "max_running_jobs": 4, "grants": {"h100": {"nominal": 1}}})["red"]
    assert (share(red)["governed"], share(red)["used"], share(red)["available"]) == (False, 1, None)
    assert (share(red, "h100")["governed"], share(red, "h100")["available"]) == (True, 1)


def test_members_see_their_path_and_of_others_only_sums(
    change: Callable, submit: Callable[..., Job], api_of: Callable, make_user: Callable, team: Team, other_team: Team
) -> None:
    third = members.create_team("green", User.objects.create(username="gus"))
    change(
        {"action": "create", "node": "research"},
        *({"node": name, "parent": "research", "grants": {"cpu": {"nominal": 4}}} for name in ("red", "blue")),
    )
    job = submit()
    drive.start(job)
    seen = api_of(make_user("bo", other_team), other_team).send("GET", "quotas")
    body = seen.json()
    assert [node["path"] for node in body["nodes"]] == ["organisation", "research", "research/blue"]
    assert (body["whole"], body["may_change"]) == (False, False)
    research = body["nodes"][1]
    assert (share(research)["used"], share(research)["teams"]) == (1, 1), "of another team: the sum"
    text = seen.content.decode()
    assert job.id not in text and team.id not in text and third.id not in text and "green" not in text


def test_only_a_platform_administrator_changes_it(
    admin: Api, api: Api, boss: User, user: User, team: Team, other_team: Team, api_of: Callable
) -> None:
    change = {"changes": [{"node": "red", "max_slots": 1}]}
    whole = {"organisation": {}}
    asks = [("PATCH", "quotas", change), ("PUT", "quotas", whole), ("POST", "quotas:preview", change),
            ("PUT", "quotas/settings", {"preempt": False}), ("GET", "quotas/document", None)]  # fmt: skip
    narrow = api_of(boss, other_team)
    for client in (api, narrow):
        for method, path, body in asks:
            assert client.send(method, path, body).status_code == 403, (method, path)
    wide = Api()
    wide.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(boss, other_team, 't', scopes=[Scope.PLATFORM])[1]}")
    assert wide.send("PATCH", "quotas", change).status_code == 200
    User.objects.filter(pk=user.pk).update(platform_role="auditor")
    auditor = Api()
    auditor.force_login(User.objects.get(pk=user.pk))
    shown = auditor.send("GET", "quotas").json()
    assert (shown["whole"], shown["may_change"], len(shown["nodes"])) == (True, False, 3)
    assert auditor.send("GET", "quotas/document").status_code == 200
    assert auditor.send("PATCH", "quotas", change).status_code == 403


def test_settings_of_admission(admin: Api, api: Api) -> None:
    first = api.send("GET", "quotas/settings")
    assert first.json()["half_life_seconds"] == 7 * 86_400
    changed = admin.send("PUT", "quotas/settings", {"preempt": False, "age_step_seconds": 0}, if_match=first["ETag"])
    assert (changed.json()["preempt"], changed.json()["age_step_seconds"], changed.json()["backfill"]) == (
        False,
        0,
        True,
    )
    late = admin.send("PUT", "quotas/settings", {"preempt": True}, if_match=first["ETag"])
    assert late.status_code == 412
    wrong = admin.send("PUT", "quotas/settings", {"half_life_seconds": 1})
    assert wrong.json()["errors"][0]["pointer"] == "/half_life_seconds"
    event = AuditEvent.objects.get(action="quota.settings")
    assert (event.before, event.after) == (
        {"preempt": True, "age_step_seconds": 86_400}, {"preempt": False, "age_step_seconds": 0},
    )  # fmt: skip


def test_a_preview_says_who_would_be_over(admin: Api, change: Callable, submit: Callable[..., Job], team: Team) -> None:
    drive.start(submit(resources={"cluster": "fake", "processes_per_node": 3}))
    wish = {"node": "red", "max_slots": 2, "max_running_jobs": 1, "grants": {"cpu": {"nominal": 1, "borrow_limit": 1}}}
    seen = admin.send("POST", "quotas:preview", {"changes": [wish]}).json()
    over = {(each["node"], each["what"]): (each["used"], each["allowed"]) for each in seen["over"]}
    assert over[("red", "cpu")] == (3, 2)
    assert over[("red", "max_slots")] == (3, 2)
    assert ("red", "max_running_jobs") not in over
    assert "  red: total slots no limit -> 2" in seen["differences"]
    assert not QuotaNode.objects.get(team=team).grants.exists()
    unclear = admin.send("POST", "quotas:preview", {})
    assert unclear.json()["errors"][0]["pointer"] == "/changes"


def test_a_team_made_later_has_a_leaf_even_where_a_group_has_its_name(change: Callable, admin: Api) -> None:
    change({"action": "create", "node": "green"})
    assert admin.send("POST", "teams", {"name": "green"}).status_code == 201
    leaf = QuotaNode.objects.get(team__name="green")
    assert leaf.name.startswith("green-") and leaf.parent_id == QuotaNode.objects.get(parent=None).id
    document = admin.send("GET", "quotas/document").json()
    assert set(document["organisation"]["teams"]) >= {"green"}
    assert admin.send("PUT", "quotas", document).status_code == 200


def test_a_deep_team_is_found_from_leaf_to_top(change: Callable, team: Team) -> None:
    change({"action": "create", "node": "a"}, {"action": "create", "node": "a/b"}, {"node": "red", "parent": "a/b"})
    assert [node.name for node in selectors.path_of_team(team)] == ["red", "b", "a", "organisation"]
    top = QuotaNode.objects.get(parent=None)
    assert team.id in selectors.teams_below(top.id)


def test_a_group_that_has_a_budget_is_not_deleted(change: Callable, admin: Api) -> None:
    group = change({"action": "create", "node": "research"})["research"]
    Budget.objects.create(node_id=group["id"], name="gpus", unit="slot_hours", period="month", amount=3600)
    refused = admin.send("PATCH", "quotas", {"changes": [{"node": "research", "action": "delete"}]})
    assert (refused.status_code, refused.json()["code"]) == (409, "group_in_use")
    assert "budget" in refused.json()["detail"]
    Budget.objects.all().delete()
    assert "research" not in change({"node": "research", "action": "delete"})
