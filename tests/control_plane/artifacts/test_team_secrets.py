"""A team's secrets reach the attempts of jobs that name them, and nothing and nobody else."""

import base64
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from athanor.accounts.models import AuditEvent, Team
from athanor.artifacts import team_secrets
from athanor.artifacts.models import TeamSecret
from athanor.backends.fake.backend import World
from athanor.core.errors import Misconfigured
from athanor.dispatch import tokens
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
CANARY = "hf_CANARY-4f1d9c-never-to-be-seen"


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    return api_of(make_user("hal", team, "admin"), team)


def put(admin: Api, team: Team, name: str = "hf-token", value: str = CANARY) -> Any:
    return admin.send("POST", f"teams/{team.id}/secrets", {"name": name, "value": value})


def whole_database() -> str:
    """Return every row of every table as text, with the content of its binary columns."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'")
        tables = [name for (name,) in cursor.fetchall()]
        seen = []
        for table in tables:
            cursor.execute(f"SELECT t::text FROM {table} t")
            seen += [row for (row,) in cursor.fetchall()]
    return "\n".join(seen)


def test_a_secret_is_set_replaced_listed_without_its_value_and_deleted(admin: Api, team: Team) -> None:
    made = put(admin, team)
    assert (made.status_code, made.json()["name"]) == (201, "hf-token")
    assert put(admin, team, value="another").status_code == 200
    listed = admin.send("GET", f"teams/{team.id}/secrets")
    assert [(item["name"], item["updated_by"]) for item in listed.json()["items"]] == [("hf-token", "hal")]
    assert "value" not in listed.json()["items"][0]
    assert admin.send("DELETE", f"secrets/{made.json()['id']}").status_code == 204
    assert admin.send("GET", f"teams/{team.id}/secrets").json()["items"] == []
    seen = AuditEvent.objects.filter(action__startswith="secret.").order_by("seq").values_list("action", flat=True)
    assert list(seen) == ["secret.create", "secret.replace", "secret.delete"]


def test_members_name_secrets_but_do_not_set_them(admin: Api, api: Api, team: Team, spec: Any, pool: Any) -> None:
    assert put(api, team).status_code == 403
    unknown = api.send("POST", "jobs", {**spec, "secrets": ["hf-token"]})
    assert (unknown.status_code, unknown.json()["errors"][0]["code"]) == (422, "unknown_secret")
    assert unknown.json()["errors"][0]["pointer"] == "/secrets/0"
    put(admin, team)
    assert api.send("POST", "jobs", {**spec, "secrets": ["hf-token"]}).status_code == 201


def test_only_the_attempt_of_a_job_that_names_it_is_given_it(admin: Api, team: Team, submit: Callable) -> None:
    put(admin, team)
    put(admin, team, "other", "not asked for")
    without, naming = drive.start(submit()), drive.start(submit(secrets=["hf-token"]))
    assert AgentClient(tokens.issue(without.id))("GET", "keys").json()["secrets"] == {}
    assert AgentClient(tokens.issue(naming.id))("GET", "keys").json()["secrets"] == {"hf-token": CANARY}


def test_a_sealed_value_that_is_moved_to_another_name_does_not_open(admin: Api, team: Team, submit: Callable) -> None:
    put(admin, team)
    job = submit(secrets=["hf-token"])
    TeamSecret.objects.update(name="moved")
    job.resolved_spec["secrets"] = ["moved"]
    with pytest.raises(Misconfigured):
        team_secrets.deliver(job)


def test_a_planted_canary_is_seen_nowhere(
    admin: Api, team: Team, api: Api, submit: Callable[..., Job], world: World, caplog: Any, spec: dict[str, Any]
) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [put(admin, team), put(admin, team, "Not A Name"), put(admin, team, value=CANARY + "\0")]
    answers.append(put(api, team))  # refused: a member
    answers.append(admin.send("PUT", f"teams/{team.id}/secrets", {"value": CANARY}))
    answers.append(api.send("POST", "jobs", {**spec, "secrets": [CANARY]}).json()["code"] and put(admin, team))
    job = submit(secrets=["hf-token"])
    attempt = drive.start(job)
    assert AgentClient(tokens.issue(attempt.id))("GET", "keys").json()["secrets"] == {"hf-token": CANARY}
    drive.beat(attempt, step=1)
    drive.settle()
    for path in ("", "/events", "/logs", "/metrics", "/artifacts"):
        answers.append(api.send("GET", f"jobs/{job.id}{path}"))
    answers += [admin.send("GET", f"teams/{team.id}/secrets"), admin.send("GET", "audit?limit=200")]
    shown = "\n".join(answer.content.decode() for answer in answers)
    attempt.refresh_from_db()
    places = {
        "API answers": shown,
        "logs": caplog.text,
        "database": whole_database(),
        "submission": attempt.submission_text + repr(world),
        "reprs": repr(TeamSecret.objects.get()) + repr(job.__dict__),
    }
    for place, text in places.items():
        for form in (CANARY, base64.b64encode(CANARY.encode()).decode(), CANARY.encode().hex()):
            assert form not in text, place
