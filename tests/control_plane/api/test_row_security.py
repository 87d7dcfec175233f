"""Row-level security: what a query without a team filter can read and write."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.core.signals import request_finished
from django.db import ProgrammingError, close_old_connections, connection, models, transaction

from athanor.accounts.models import Team, User
from athanor.artifacts.models import (
    Artifact,
    GrantedKey,
    ModelAlias,
    ModelGrant,
    ModelImport,
    ModelVersion,
    RegisteredModel,
    TeamKey,
)
from athanor.core import tenancy
from athanor.jobs import selectors
from athanor.jobs.models import Job, JobEvent
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db

# People and their keys to the door are read before it is known who asks; the audit trail is read across teams.
OPEN_APPS = {"accounts"}


def of_a_team(model: type[models.Model], seen: tuple[type[models.Model], ...] = ()) -> bool:
    """Whether a required foreign key leads to a team, over any number of steps."""
    targets = [field.related_model for field in model._meta.fields if field.is_relation and not field.null]
    return any(
        target is Team or (target not in (model, User, *seen) and of_a_team(target, (*seen, model)))
        for target in targets
    )


# Read by the teams that a registered model is shared with.
SHARED = {Artifact, GrantedKey, ModelAlias, ModelGrant, ModelImport, ModelVersion, RegisteredModel}
PROTECTED = [model for model in apps.get_models() if model._meta.app_label not in OPEN_APPS and of_a_team(model)]


@pytest.mark.parametrize("model", PROTECTED, ids=lambda model: model._meta.db_table)
def test_every_table_of_a_teams_work_has_a_policy(model: type[models.Model], db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relrowsecurity AND relforcerowsecurity, (SELECT jsonb_object_agg(polname, polcmd) FROM pg_policy"
            " WHERE polrelid = c.oid) FROM pg_class c WHERE oid = %s::regclass",
            [model._meta.db_table],
        )
        is_protected, policies = cursor.fetchone()
    expected = {"of_a_team": "*", **({"shared": "r"} if model in SHARED else {})}  # r: of SELECT alone
    assert is_protected, "protect it in a migration: athanor.core.tenancy"
    assert {name: str(command) for name, command in json.loads(policies).items()} == expected


def test_another_teams_session_sees_and_changes_nothing(foreign: dict[str, str], other_team: Team, team: Team) -> None:
    rows = {model: model._default_manager.count() for model in PROTECTED}
    assert rows[Job] == 1
    tenancy.restrict([other_team.id])
    assert {model: model._default_manager.count() for model in PROTECTED} == dict.fromkeys(PROTECTED, 0)
    assert Job.objects.update(status="failed") == 0
    tenancy.restrict([])
    assert Job.objects.count() == 0
    tenancy.restrict([team.id])
    own = {**rows, TeamKey: 1}  # the other one is that of the team that a model is shared with
    assert {model: model._default_manager.count() for model in PROTECTED} == own


def test_nothing_can_be_written_for_another_team(foreign: dict[str, str], other_team: Team) -> None:
    job = Job.objects.get()
    tenancy.restrict([other_team.id])
    with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
        JobEvent.objects.create(job=job, seq=99, type="x", time=job.created_at, actor="x")


def test_a_team_is_included_within_a_block_alone_also_if_it_fails(
    foreign: dict[str, str], team: Team, other_team: Team
) -> None:
    tenancy.restrict([other_team.id])
    with tenancy.including([team.id]):
        assert Job.objects.count() == 1
    assert Job.objects.count() == 0
    with pytest.raises(ProgrammingError), tenancy.including([team.id]), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM jobs_job")
    assert Job.objects.count() == 0


def test_a_view_that_forgets_the_team_still_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, foreign: dict[str, str], api_of: Callable, make_user: Callable, other_team: Team
) -> None:
    stranger: Api = api_of(make_user("sam", other_team), other_team)
    monkeypatch.setattr(selectors, "jobs_of", lambda _: Job.objects.all())
    assert stranger.send("GET", f"jobs/{foreign['job_id']}").status_code == 404
    assert stranger.send("GET", "jobs").json()["items"] == []
    assert stranger.send("POST", f"jobs/{foreign['job_id']}:cancel").status_code == 404


def test_the_session_is_as_before_when_the_request_is_over(api: Any, foreign: dict[str, str]) -> None:
    assert api.send("GET", "jobs").status_code == 200
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true)")
        assert not cursor.fetchone()[0]
    with tenancy.unrestricted():
        assert Job.objects.count() == 1


@pytest.mark.timeout(30)
def test_a_response_that_ends_within_a_query_of_this_thread_does_not_wait_for_it() -> None:
    """One that streams and is not closed ends when it is collected as garbage, wherever that happens."""
    tenancy.see_all()
    request_finished.disconnect(close_old_connections)  # as Django's test client does around the end of a response
    try:
        with connection.connection.lock:
            request_finished.send(sender=None)
    finally:
        request_finished.connect(close_old_connections)
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('athanor.teams', true)")
        assert cursor.fetchone() == (tenancy.ALL,), "the request that runs the query is not over"


def test_a_policy_costs_no_function_call_a_row(foreign: dict[str, str]) -> None:
    tenancy.restrict(["team_1"])
    plan = Job.objects.filter(status="queued").explain(verbose=True)
    assert "current_setting" in plan
    assert "athanor_sees" not in plan
