"""Projects: created by the first job that names one, described, archived."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import AuditEvent, Role, Team, User
from athanor.backends.fake.backend import World
from athanor.jobs.models import Job, Project

pytestmark = pytest.mark.django_db


def test_the_first_job_of_a_project_makes_it_once(api: Any, spec: dict, world: World) -> None:
    for _ in range(2):
        assert api.send("POST", "jobs", {**spec, "project": "vision"}).status_code == 201
    api.send("POST", "jobs", spec)
    items = api.send("GET", "projects").json()["items"]
    assert [(item["name"], item["job_count"], item["live_job_count"]) for item in items] == [
        ("default", 1, 1),
        ("vision", 2, 2),
    ]
    assert items[1]["created_by"] == "ada"
    assert items[1]["last_submitted_at"] is not None


def test_an_archived_project_takes_no_more_jobs_until_it_is_taken_out(api: Any, spec: dict, world: World) -> None:
    made = api.send("POST", "projects", {"name": "old", "description": "of last year"})
    assert made.status_code == 201, made.content
    path = f"projects/{made.json()['id']}"
    archived = api.send("PATCH", path, {"archived": True}).json()
    assert archived["archived_at"] is not None
    assert archived["description"] == "of last year"
    refused = api.send("POST", "jobs", {**spec, "project": "old"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/project"
    assert Job.objects.count() == 0
    api.send("PATCH", path, {"archived": False})
    assert api.send("POST", "jobs", {**spec, "project": "old"}).status_code == 201
    assert list(AuditEvent.objects.filter(action="project.change").order_by("seq").values_list("after", flat=True)) == [
        {"archived": True, "description": "of last year"},
        {"archived": False, "description": "of last year"},
    ]


def test_a_list_of_projects_is_filtered_by_archived_and_nothing_else_is_taken(api: Any) -> None:
    made = api.send("POST", "projects", {"name": "old"}).json()
    api.send("PATCH", f"projects/{made['id']}", {"archived": True})
    assert len(api.send("GET", "projects?archived=true").json()["items"]) == 1
    assert api.send("GET", "projects?archived=false").json()["items"] == []
    assert api.send("GET", "projects?archived=foo").status_code == 422


def test_the_same_name_is_another_project_in_another_team(
    api: Any, api_of: Callable, make_user: Callable[..., User], other_team: Team
) -> None:
    stranger = api_of(make_user("sam", other_team), other_team)
    assert api.send("POST", "projects", {"name": "x"}).status_code == 201
    assert stranger.send("POST", "projects", {"name": "x"}).status_code == 201
    again = api.send("POST", "projects", {"name": "x"})
    assert (again.status_code, again.json()["code"]) == (409, "project_exists")
    assert Project.objects.count() == 2


def test_a_viewer_changes_no_project(api: Any, api_of: Callable, make_user: Callable[..., User], team: Team) -> None:
    project = api.send("POST", "projects", {"name": "x"}).json()
    viewer = api_of(make_user("vic", team, Role.VIEWER), team)
    assert viewer.send("GET", f"projects/{project['id']}").status_code == 200
    assert viewer.send("PATCH", f"projects/{project['id']}", {"archived": True}).status_code == 403
    assert viewer.send("POST", "projects", {"name": "y"}).status_code == 403
