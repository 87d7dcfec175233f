"""Preview of the effect of a quota change on current jobs."""

from collections.abc import Callable

import pytest

from athanor.accounts.models import Team, User
from athanor.jobs.models import Job
from athanor.quotas.models import AdmissionSettings, QuotaGrant, QuotaNode
from athanor.quotas.services import settings
from tests.control_plane import drive
from tests.control_plane.conftest import SPEC, Api

pytestmark = pytest.mark.django_db
EIGHT = {"cluster": "fake", "processes_per_node": 8}


def preview(admin: Api, *wishes: dict) -> dict:
    answer = admin.send("POST", "quotas:preview", {"changes": list(wishes)})
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_larger_quota_starts_what_waits_for_it(
    admin: Api, change: Callable, submit: Callable[..., Job], team: Team
) -> None:
    change({"node": "red", "grants": {"cpu": {"nominal": 1, "borrow_limit": 0}}})
    job = submit(resources={"cluster": "fake", "processes_per_node": 2})
    same = preview(admin, {"node": "red", "weight": 2})
    assert (same["started"], same["preempted"], same["not_started"]) == ([], [], [])
    more = preview(admin, {"node": "red", "grants": {"cpu": {"nominal": 2, "borrow_limit": 0}}})
    assert more["started"] == [{"id": job.id, "team": "red", "slots": 2, "accelerator": "cpu", "why": ""}]
    assert Job.objects.get(pk=job.pk).status == "queued", "a preview starts nothing"
    QuotaNode.objects.get(team=team).grants.update(nominal=2)
    less = preview(admin, {"node": "red", "grants": {"cpu": {"nominal": 1, "borrow_limit": 0}}})
    assert [each["id"] for each in less["not_started"]] == [job.id]
    assert less["not_started"][0]["why"]


def test_who_would_be_asked_to_give_slots_back_is_named(
    admin: Api,
    submit: Callable[..., Job],
    api_of: Callable,
    make_user: Callable[..., User],
    other_team: Team,
    team: Team,
) -> None:
    settings()
    AdmissionSettings.objects.update(protected_seconds=0)
    victim = submit(name="large", resources=EIGHT)
    drive.run(victim)
    blue = api_of(make_user("bo", other_team), other_team)
    answer = blue.send("POST", "jobs", {**SPEC, "resources": EIGHT})
    assert answer.status_code == 201, answer.content
    entitled = [
        {"node": "blue", "grants": {"cpu": {"nominal": 8}}},
        {"node": "red", "grants": {"cpu": {"nominal": 0}}},
    ]
    seen = preview(admin, *entitled)
    assert [(each["id"], each["team"], each["why"]) for each in seen["preempted"]] == [
        (victim.id, "red", f"for {answer.json()['id']} of blue")
    ]
    assert Job.objects.get(pk=victim.pk).status == "running"
    assert seen["notes"] == []
    # Of a cluster that was removed since.
    QuotaGrant.objects.create(node=QuotaNode.objects.get(team=other_team), accelerator="h100", nominal=1)
    more = preview(admin, {"node": "blue", "grants": {"cpu": {"nominal": 9}, "h100": {"nominal": 1}}})
    assert more["notes"] == [
        "9 slots of cpu are granted in total, and jobs may hold 8",
        "1 slots of h100 are granted in total, and jobs may hold 0",
    ]
