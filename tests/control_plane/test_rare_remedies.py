"""Remedies of what only operators, agents and races meet are followed."""

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.core.management import CommandError, call_command
from django.db import IntegrityError
from django.test import Client

from athanor.accounts import audit, members, passwords
from athanor.accounts.models import AuditHead, Role, Team, User
from athanor.artifacts import keys, previews, rotation, uploads
from athanor.backends.base import BackendRejected
from athanor.backends.fake.backend import FakeBackend, World
from athanor.clusters.models import Cluster, Pool
from athanor.compliance import audit_anchors, team_deletion
from athanor.core import clock
from athanor.core.encryption import new_wrapping_keyset
from athanor.core.errors import AthanorError
from athanor.dispatch import tokens
from athanor.fleet import clusters, orphans
from athanor.jobs import projects
from athanor.jobs.models import Job
from athanor.scheduling.models import AdmissionCycle
from athanor.webhooks import services as webhooks
from tests.control_plane import drive
from tests.control_plane.accounts.test_second_factors import PASSWORD, Browser, add_app
from tests.control_plane.answers import done, refused
from tests.control_plane.api.test_agent import AgentClient, manifest_of, stored_part
from tests.control_plane.artifacts.test_datasets import parquet, upload
from tests.control_plane.conftest import Api
from tests.control_plane.roles import as_owner

pytestmark = pytest.mark.django_db
LONG = "a long enough one 81"


def raised(code: str, act: Callable[[], object]) -> str:
    """Call `act`, which raises an error with this code. Return its remedy."""
    with pytest.raises(AthanorError) as caught:
        act()
    assert caught.value.code == code
    return caught.value.remedy


@pytest.fixture
def operator(make_user: Callable[..., User], other_team: Team) -> Api:
    root = make_user("root", other_team, Role.ADMIN)
    User.objects.filter(pk=root.pk).update(platform_role="platform_admin", is_staff=True)
    client = Api()
    client.force_login(User.objects.get(pk=root.pk))
    return client


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    client: Api = api_of(make_user("hal", team, Role.ADMIN), team)
    return client


@pytest.fixture
def person(user: User, settings: Any) -> User:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    user.set_password(PASSWORD)
    user.save()
    return user


# Operators


def test_a_place_of_anchors_is_made_writable(tmp_path: Path, settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"audit_anchors": f"file:{tmp_path}/later/anchors"})
    audit.record_alone("test.act", actor="ada", target=("thing", "1"))
    assert "writable" in raised("audit_anchor_failed", audit_anchors.write)
    (tmp_path / "later").mkdir()
    audit_anchors.write()
    assert [anchor.seq for anchor in audit_anchors.read().anchors] == [1]


def test_a_broken_audit_trail_is_verified_and_compared_with_a_backup() -> None:
    audit.record_alone("test.act", actor="ada", target=("thing", "1"))
    digest = AuditHead.objects.get().digest
    with as_owner():
        AuditHead.objects.update(digest="0" * len(digest))
    assert "manage.py verify_audit" in raised("audit_trail_broken", audit.anchor_head)
    with pytest.raises(CommandError, match="broken in 2 places"):
        call_command("verify_audit")
    with as_owner():
        AuditHead.objects.update(digest=digest)
    call_command("verify_audit")
    assert audit.anchor_head() is not None


def test_the_clocks_are_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    real = clock.database_now
    with monkeypatch.context() as wrong:
        wrong.setattr(clock, "database_now", lambda: real() + timedelta(minutes=1))
        assert "synchronise the clocks" in raised("clock_differs", clock.require_right_clock)
    clock.require_right_clock()


def test_the_former_master_key_is_given_too(team: Team, settings: Any) -> None:
    old, new = settings.ATHANOR.master_key, new_wrapping_keyset()
    key = keys.data_key("job_1", team)

    def use(current: str, previous: str = "") -> None:
        update = {"master_key": current, "previous_master_key": previous}
        settings.ATHANOR = settings.ATHANOR.model_copy(update=update)

    use(new)
    assert "the old one in ATHANOR_PREVIOUS_MASTER_KEY" in raised(
        "key_unreadable", lambda: keys.data_key("job_1", team)
    )
    use(new, old)
    assert keys.data_key("job_1", team) == key


def test_a_rotation_that_missed_a_row_is_run_again(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    key = keys.data_key("job_1", team)
    with monkeypatch.context() as forgetful:
        forgetful.setattr(rotation, "_rewrap", lambda *_arguments: 0)
        assert "run it again" in raised("rotation_unfinished", lambda: rotation.rotate_team(team))
    call_command("rotate_team_key", team.name)
    assert keys.data_key("job_1", team) == key


def test_a_reset_link_is_for_an_active_person(person: User, team: Team) -> None:
    robot = members.create_service_account(team, "ci", Role.MEMBER, person)
    assert "active person" in raised("cannot_sign_in", lambda: passwords.reset_link(robot, person))
    assert passwords.reset_link(person, person)


def test_a_member_is_an_active_person(user: User, other_team: Team, operator: Api) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)
    root = User.objects.get(username="root")
    add = partial(members.add_member, other_team, user.username, Role.MEMBER, root)
    assert "activate the user" in raised("unknown_user", add)
    User.objects.filter(pk=user.pk).update(is_active=True)
    assert add().user == user


def test_a_superusers_second_factors_are_removed_by_a_superuser(operator: Api, user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_superuser=True, is_staff=True)
    chosen = {"action": "remove_second_factors", "_selected_action": [user.pk]}

    def said(username: str) -> str:
        client = Client()
        client.force_login(User.objects.get(username=username))
        return " ".join(map(str, get_messages(client.post("/admin/accounts/user/", chosen).wsgi_request)))

    assert "ask one" in said("root")
    User.objects.create(username="chief", is_superuser=True, is_staff=True)
    assert "has no second factor" in said("chief")


def test_an_administrators_own_second_factors_are_removed_with_the_password(person: User) -> None:
    User.objects.filter(pk=person.pk).update(platform_role="platform_admin", is_staff=True)
    browser = Browser()
    done(browser.password())
    add_app(browser)
    chosen = {"action": "remove_second_factors", "_selected_action": [person.pk]}
    page = browser.post("/admin/accounts/user/", chosen, follow=True).content.decode()
    assert "use the page Account of the dashboard" in page
    done(browser.confirm("authenticator-app:remove"))


def test_a_cluster_that_refuses_accounts_is_asked_again(
    operator: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Iterator[object] = iter([BackendRejected("no such parent account"), "red: made"])

    class Syncing(FakeBackend, clusters.SyncsTeams):
        def sync_teams(self, teams: Any) -> list[str]:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return [str(answer)]

    monkeypatch.setattr(clusters, "build_backend", lambda kind, config, name: Syncing(**config))
    path = f"clusters/{Cluster.objects.get(name='fake').id}:sync_teams"
    refused(operator.send("POST", path), "sync_refused", "resolve the reported error")
    done(operator.send("POST", path))


def test_a_pool_gets_another_name(operator: Api, world: World) -> None:
    path = f"clusters/{Cluster.objects.get(name='fake').id}/pools"
    body = {"slots_per_node": 1, "memory_bytes": 2**30}
    answer = operator.send("PUT", f"{path}/gpu.a", body)
    refused(answer, "invalid", "choose another name")
    assert answer.json()["errors"][0]["pointer"] == "/name"
    done(operator.send("PUT", f"{path}/gpu-a", body))


def test_a_cluster_that_lists_nothing_is_asked_with_its_own_tools(
    operator: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"cluster_id": Cluster.objects.get(name="fake").id, "backend_name": "athanor-x"}
    with monkeypatch.context() as mute:
        mute.setattr(orphans, "backend_of", lambda _cluster: object())
        refused(operator.send("POST", "admin/orphans:cancel", body), "not_listable", "its own tools")
    assert operator.send("POST", "admin/orphans:cancel", body).status_code == 404


def test_a_changed_decision_is_no_evidence(operator: Api, submit: Callable[..., Job]) -> None:
    drive.start(submit())
    cycle = AdmissionCycle.objects.latest("id")
    path = f"admin/decisions/{cycle.pk}:replay"
    assert done(operator.send("POST", path))["same"]
    with as_owner():
        AdmissionCycle.objects.filter(pk=cycle.pk).update(digest="0" * 64)
    refused(operator.send("POST", path), "decision_changed", "no evidence")
    with as_owner():
        AdmissionCycle.objects.filter(pk=cycle.pk).update(digest=cycle.digest)
    assert done(operator.send("POST", path))["same"]


# Agents


def test_a_manifest_names_the_files_that_were_stored(submit: Callable[..., Job], bucket: str) -> None:
    attempt = drive.start(submit())
    agent = AgentClient(tokens.issue(attempt.id))
    nothing = manifest_of(attempt, 1, []).model_dump(mode="json") | {"files": []}
    refused(agent("POST", "checkpoints", nothing), "empty_manifest", "store the files first")
    part = stored_part(attempt, "checkpoints/1/rank0")
    done(agent("POST", "checkpoints", manifest_of(attempt, 1, [part]).model_dump(mode="json")))


def test_an_agent_reads_the_data_sets_of_its_job_only(
    api: Api, submit: Callable[..., Job], bucket: str, world: World
) -> None:
    foreign = upload(api, b"text", name="foreign").json()["id"]
    agent = AgentClient(tokens.issue(drive.start(submit()).id))
    body = {"dataset_id": foreign, "recipe": "0" * 64}
    refused(agent("POST", "preparations:claim", body), "foreign_dataset", "of the job's spec only")


# People, and what happens meanwhile


def test_an_invitation_is_accepted_with_a_proper_name(team: Team, user: User, settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    body = {"token": members.invite(team, Role.MEMBER, 1, "", user)[1], "password": LONG}
    answer = Api().send("POST", "invitations:accept", {**body, "username": "a b"})
    refused(answer, "invalid", "fix the fields in errors")
    assert answer.json()["errors"][0]["pointer"] == "/username"
    done(Api().send("POST", "invitations:accept", {**body, "username": "ab"}))


def test_curves_are_of_jobs_or_of_filters(api: Api, submit: Callable[..., Job]) -> None:
    body = {"jobs": [submit().id], "filters": {}, "series": ["train/loss"]}
    refused(api.send("POST", "metrics:query", body), "invalid", "either jobs or filters")
    for name in ("jobs", "filters"):
        done(api.send("POST", "metrics:query", {each: body[each] for each in (name, "series")}))


def test_a_destination_is_a_public_origin(admin: Api, team: Team) -> None:
    path, body = f"teams/{team.id}/secrets", {"name": "hf-token", "value": "x"}
    answer = admin.send("POST", path, {**body, "destinations": ["http://10.0.0.1"]})
    refused(answer, "invalid_destination", "scheme://host[:port] of a public https server")
    done(admin.send("POST", path, {**body, "destinations": ["https://93.184.216.34"]}))


def test_a_user_without_a_passkey_sends_a_code(person: User) -> None:
    browser, again = Browser(), Browser()
    done(browser.password())
    app, _ = add_app(browser)
    assert again.password().json()["code"] == "second_factor_required"
    refused(again.send("POST", "session:passkey-challenge"), "no_passkey", "send a code")
    done(again.code(app.code()))


def test_a_spec_is_saved_as_utf8(api: Api, pool: Pool, spec: dict[str, Any]) -> None:
    text = json.dumps({**spec, "labels": {"place": "Köln"}}, ensure_ascii=False)
    post = partial(api.generic, "POST", "/api/v1/jobs", content_type="application/yaml")
    refused(post(text.encode("latin-1")), "not_utf8", "save it as UTF-8")
    done(post(text.encode()))


def test_a_preview_that_found_no_process_is_asked_again(api: Api, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = parquet(body=["x", "y"])
    made = upload(api, content, name="table", content_type="application/vnd.apache.parquet").json()

    def exhausted(*_arguments: Any, **_options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    path = f"datasets/{made['id']}/preview"
    with monkeypatch.context() as full:
        full.setattr(previews.subprocess, "run", exhausted)
        assert previews.subprocess is subprocess
        refused(api.send("GET", path), "no_process", "try again")
    assert len(done(api.send("GET", path))["rows"]) == 2


def test_a_webhook_that_is_busy_is_deleted_again(admin: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = done(admin.send("POST", "webhooks", {"url": "https://93.184.216.34/x", "name": "ci"}))
    with monkeypatch.context() as busy:

        def interrupted(*_arguments: Any) -> None:
            raise IntegrityError

        busy.setattr(webhooks, "_delete", interrupted)
        answer = admin.send("DELETE", f"webhooks/{hook['id']}")
        refused(answer, "webhook_busy", "after a second")
        assert answer["Retry-After"] == "1"
    done(admin.send("DELETE", f"webhooks/{hook['id']}"))


def test_a_team_deleted_meanwhile_takes_nothing_more(team: Team, other_team: Team, user: User) -> None:
    team_deletion.delete(team, user)
    new = "job_of_later"
    for act, says in (
        (lambda of: keys.data_key(new, of), "nothing new is stored"),
        (lambda of: uploads._check_team_exists(of), "another team"),
        (lambda of: projects.get_or_create_for_submission(of, "p", user), "another team"),
        (lambda of: team_deletion.delete(of, user), "GET /deletions"),
    ):
        assert says in raised("team_deleted", partial(act, team))
        act(other_team)
