"""Simulations over the API: who may request one, how a worker runs it, and the errors of those that cannot run."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.accounts.roles import PlatformRole
from athanor.jobs.models import Attempt, Job
from athanor.scheduling import simulations
from athanor.scheduling.models import Simulation
from tests.control_plane import drive
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
MADE_UP = {"days": 2, "jobs_per_day": 30, "largest": 4, "seed": 5}


@pytest.fixture
def overseer(user: User) -> Api:
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.AUDITOR.value)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client


def asked(client: Api, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.send("POST", "simulations", body)
    assert answer.status_code == 202, answer.content
    assert answer.json()["state"] == "waiting"
    simulations.run_due()
    found: dict[str, Any] = client.send("GET", f"simulations/{answer.json()['id']}").json()
    return found


def test_made_up_jobs_are_tried_on_the_present_and_on_what_is_proposed(
    overseer: Api, submit: Callable[..., Job], team: Team
) -> None:
    submit()
    limited = {"changes": [{"node": "red", "max_running_jobs": 1}], "settings": {"backfill": False}}
    found = asked(overseer, {"name": "one at a time", "generate": MADE_UP, **limited})
    assert (found["state"], found["error"], found["created_by"]) == ("done", "", "ada")
    present, proposed = found["result"]["present"], found["result"]["proposed"]
    assert present["all"]["jobs"] == proposed["all"]["jobs"] == 60
    waits = [part["teams"]["red"]["waits_seconds"]["mean"] for part in (present, proposed)]
    assert waits[0] < waits[1]
    listed = overseer.send("GET", "simulations").json()["items"]
    assert [(one["name"], one["state"]) for one in listed] == [("one at a time", "done")]
    assert "result" not in listed[0]


def test_what_really_ran_is_replayed(overseer: Api, submit: Callable[..., Job]) -> None:
    job = submit()
    drive.start(job)
    now = timezone.now()
    Attempt.objects.update(launched_at=now - timedelta(minutes=30), ended_at=now - timedelta(minutes=10))
    Job.objects.update(created_at=now - timedelta(hours=1), admitted_at=now - timedelta(minutes=40), finished_at=now)
    found = asked(overseer, {"history_days": 7})
    result = found["result"]
    assert result["proposed"] is None, "nothing was proposed"
    assert result["present"]["all"]["ended"] == 1
    assert result["present"]["all"]["used_slot_hours"] == round(job.slots * 20 / 60, 2)


def test_without_jobs_it_says_so(overseer: Api, team: Team) -> None:
    found = asked(overseer, {"history_days": 1})
    assert found["state"] == "failed"
    assert "There are no finished jobs in that time" in found["error"]


def test_one_that_workers_die_of_is_given_up(overseer: Api, submit: Callable[..., Job]) -> None:
    submit()
    row = Simulation.objects.create(
        created_by=User.objects.get(username="ada"), request={"generate": MADE_UP}, tries=simulations.MAX_TRIES
    )
    simulations.run_due()
    row.refresh_from_db()
    assert row.ended_at is not None
    assert "3 workers ended" in row.error


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/history_days"),
        ({"history_days": 1, "generate": MADE_UP}, "/history_days"),
        ({"history_days": 0}, "/history_days"),
        ({"history_days": 1, "changes": [{"node": "rde", "max_slots": 1}]}, "/changes/0/node"),
        ({"history_days": 1, "changes": [{"node": "red"}], "organisation": {}}, "/changes"),
        ({"generate": {**MADE_UP, "jobs_per_day": 10**6}}, "/generate/jobs_per_day"),
    ],
)
def test_what_means_nothing_is_refused_with_its_place(
    overseer: Api, team: Team, body: dict[str, Any], pointer: str
) -> None:
    answer = overseer.send("POST", "simulations", body)
    assert answer.status_code == 422, answer.content
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert not Simulation.objects.exists()


def test_members_of_teams_see_none(api: Api, user: User) -> None:
    row = Simulation.objects.create(created_by=user, request={"history_days": 1})
    for path in ("simulations", f"simulations/{row.id}"):
        assert api.send("GET", path).status_code == 403
    assert api.send("POST", "simulations", {"history_days": 1}).status_code == 403
