"""`Idempotency-Key`: a repeated POST creates nothing, and only the same credential gets the stored response."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from athanor.accounts import audit, idempotency, members
from athanor.accounts.models import ApiToken, IdempotentAnswer, Invitation, Membership, Team, User
from athanor.accounts.roles import PlatformRole, Role, Scope
from athanor.accounts.services import issue_token
from athanor.artifacts.models import Artifact, Dataset
from athanor.core import encryption
from athanor.jobs.models import Job, Project
from athanor.webhooks.models import Webhook
from deploy.local import checks
from tests.control_plane import drive
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db

DOCUMENT = json.loads(checks.OPENAPI_DOCUMENT.read_text())
# One request for each operation that takes the key, in terms of the ids of `foreign`. Jobs: test_jobs.py.
REQUESTS: dict[str, tuple[str, Any]] = {
    "alert_rules_create": ("alert-rules", {"name": "long", "measure": "queue_wait", "threshold": 60, "team": "red"}),
    "budgets_create": (
        "budgets",
        {"node_id": "{node_id}", "name": "b", "unit": "slot_hours", "period": "month", "amount": 1},
    ),
    "clusters_create": ("clusters", {"name": "second", "kind": "local", "config": {}}),
    "datasets_upload": ("datasets?name=words&team=red", "some words to train on"),
    "deliveries_redeliver": ("deliveries/{delivery_id}:redeliver", None),
    "invitations_accept": ("invitations:accept", {"token": "{invitation}"}),
    "invitations_create": ("teams/{team_id}/invitations", {"role": "member"}),
    "jobs_profile": ("jobs/{running_id}:profile", {"steps": 2}),
    "members_add": ("teams/{team_id}/members", {"username": "nobody", "role": "member"}),
    "models_create": ("models", {"name": "new", "team": "red"}),
    "models_register": ("models/{model_id}/versions", {"artifact": "{artifact_id}"}),
    "offers_accept": ("invitations/{offer_id}:accept", None),
    "projects_create": ("projects", {"name": "new", "team": "red"}),
    "secrets_put": ("teams/{team_id}/secrets", {"name": "new", "value": "hush-hush"}),
    "series_connect": ("series", {"kind": "carbon", "cluster_id": "{cluster_id}"}),
    "service_accounts_create": ("teams/{team_id}/service-accounts", {"name": "robot", "role": "member"}),
    "service_accounts_token": ("service-accounts/{account_id}/tokens", {"name": "t"}),
    "signing_keys_rotate": ("teams/{team_id}/signing-keys:rotate", None),
    "simulations_create": ("simulations", {"history_days": 1}),
    "teams_create": ("teams", {"name": "green", "max_running_jobs": 3}),
    "tokens_create": ("tokens", {"name": "t", "team": "red"}),
    "tokens_rotate": ("tokens/{token_id}:rotate", {}),
    "webhooks_create": ("webhooks", {"url": "https://example.org/hook", "team": "red"}),
    "webhooks_rotate_secret": ("webhooks/{webhook_id}:rotate_secret", {}),
    "webhooks_test": ("webhooks/{webhook_id}:test", None),
}
JOBS = {"jobs_submit", "jobs_fork", "jobs_retry"}
NODES = {"nodes_preflight"}  # dispatch/test_node_preflights.py
IMPORTS = {"models_import"}  # artifacts/test_imports.py
PASSKEYS = {"second_factors_passkey_add"}  # accounts/test_second_factors.py


def send(client: Api, path: str, body: Any, **headers: str) -> Any:
    if isinstance(body, str):
        extra = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        return client.generic("POST", f"/api/v1/{path}", body, content_type="text/plain", **extra)
    return client.send("POST", path, body, **headers)


@pytest.fixture
def admin_user(make_user: Callable[..., User], team: Team) -> User:
    user = make_user("root", team, Role.ADMIN)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    return User.objects.get(pk=user.pk)


def client_of(user: User, team: Team, *scopes: Scope) -> Api:
    client = Api()
    secret = issue_token(user, team, "test", scopes=list(scopes or Scope))[1]
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


@pytest.fixture
def admin(admin_user: User, team: Team) -> Api:
    return client_of(admin_user, team)


@pytest.fixture
def filled(
    admin: Api, foreign: dict[str, str], admin_user: User, team: Team, other_team: Team, submit: Callable[..., Job]
) -> Callable[[Any], Any]:
    """Fill in the ids of a request of REQUESTS."""
    running = submit(name="running")
    drive.run(running)
    ids = {
        **foreign,
        "node_id": team.quota_node.id,
        "running_id": running.id,
        "token_id": ApiToken.objects.get(user=admin_user).id,
        "invitation": members.invite(other_team, Role.MEMBER, 1, "", admin_user)[1],
        "offer_id": members.offer_membership(other_team, admin_user.username, Role.MEMBER, admin_user).id,
    }

    def fill(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: fill(value) for name, value in part.items()}
        return part.format(**ids) if isinstance(part, str) else part

    return fill


def keyed_operations() -> dict[str, str]:
    return {
        operation["operationId"]: path
        for path, operations in DOCUMENT["paths"].items()
        for operation in operations.values()
        if any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", []))
    }


def test_every_operation_that_takes_the_key_is_tested_here() -> None:
    assert set(REQUESTS) | JOBS | NODES | IMPORTS | PASSKEYS == set(keyed_operations())


@pytest.mark.parametrize("name", REQUESTS)
def test_a_repeated_request_makes_nothing_and_gets_the_first_answer(
    name: str, admin: Api, filled: Callable[[Any], Any]
) -> None:
    path, body = (filled(part) for part in REQUESTS[name])
    first = send(admin, path, body, idempotency_key="k-1")
    assert first.status_code in (200, 201, 202), first.content
    assert not first.has_header("Idempotency-Replayed")
    events = audit.AuditEvent.objects.count()
    again = send(admin, path, body, idempotency_key="k-1")
    assert (again.status_code, again["Idempotency-Replayed"]) == (first.status_code, "true"), again.content
    assert again.json() == first.json()
    assert audit.AuditEvent.objects.count() == events, "nothing was made"
    if isinstance(body, str):
        changed = send(admin, path, "other words", idempotency_key="k-1")
        assert (changed.status_code, changed.json()["code"]) == (422, "idempotency_key_reused")
    refused = send(admin, path, body, idempotency_key="k" * 201)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/Idempotency-Key")


def test_the_key_with_another_body_or_address_is_refused(admin: Api, team: Team) -> None:
    assert admin.send("POST", "tokens", {"name": "a"}, idempotency_key="k").status_code == 201
    for path, body, word in (("tokens", {"name": "b"}, "another body"), ("projects", {"name": "a"}, "/api/v1/tokens")):
        answer = admin.send("POST", path, body, idempotency_key="k")
        assert (answer.status_code, answer.json()["code"]) == (422, "idempotency_key_reused")
        assert word in answer.json()["detail"]
        assert "'k'" in answer.json()["detail"]
    assert admin.send("POST", "tokens", {"name": "b"}, idempotency_key="k-2").status_code == 201, "the remedy"


@pytest.mark.parametrize("key", ["", " ", "k" * 201, "k\x7f", "k\xe9"])
@pytest.mark.parametrize("path", ["tokens", "jobs"])
def test_a_malformed_key_is_named(api: Api, spec: dict[str, Any], world: Any, path: str, key: str) -> None:
    answer = api.send("POST", path, spec if path == "jobs" else {"name": "a"}, idempotency_key=key)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/Idempotency-Key")


def test_an_error_is_not_stored(admin: Api) -> None:
    assert admin.send("POST", "projects", {"name": "?"}, idempotency_key="k").status_code == 422
    assert admin.send("POST", "projects", {"name": "good"}, idempotency_key="k").status_code == 201
    taken = admin.send("POST", "projects", {"name": "good"}, idempotency_key="k-2")
    assert (taken.status_code, IdempotentAnswer.objects.count()) == (409, 1)


def test_another_token_of_the_user_does_not_read_the_answer(admin: Api, admin_user: User, team: Team) -> None:
    body = {"name": "a", "scopes": ["read"]}
    first = admin.send("POST", "tokens", body, idempotency_key="k").json()
    narrow = client_of(admin_user, team, Scope.READ)
    second = narrow.send("POST", "tokens", body, idempotency_key="k")
    assert second.status_code == 201
    assert second.json()["token"] != first["token"]
    browser = Api()
    browser.force_login(admin_user)
    third = browser.send("POST", "tokens", body, idempotency_key="k").json()
    assert third["token"] not in (first["token"], second.json()["token"])
    assert browser.send("POST", "tokens", body, idempotency_key="k").json()["token"] == third["token"]


def test_who_has_lost_the_role_does_not_get_the_secret_again(make_user: Callable[..., User], team: Team) -> None:
    user = make_user("kim", team, Role.ADMIN)
    client, body = client_of(user, team, Scope.READ, Scope.ADMIN), {"url": "https://example.org/hook"}
    first = client.send("POST", "webhooks", body, idempotency_key="k")
    assert "secret" in first.json()
    Membership.objects.filter(user=user).update(role=Role.MEMBER)
    assert client.send("POST", "webhooks", body, idempotency_key="k").status_code == 403
    Membership.objects.filter(user=user).delete()
    again = client.send("POST", "webhooks", body, idempotency_key="k")
    assert again.status_code in (403, 404, 422)
    assert first.json()["secret"] not in again.content.decode()


def test_the_table_holds_neither_secret_nor_a_digest_of_the_body(admin: Api) -> None:
    body = {"name": "a", "scopes": ["read"]}
    secret = admin.send("POST", "tokens", body, idempotency_key="k").json()["token"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(r)::text, r.encrypted FROM accounts_idempotentanswer r")
        ((text, encrypted),) = cursor.fetchall()
    assert secret not in text
    assert secret.encode() not in bytes(encrypted)
    stored = json.loads(text)
    assert set(stored) == {"id", "credential", "key", "path", "status", "encrypted", "created_at"}
    other = IdempotentAnswer.objects.get()
    IdempotentAnswer.objects.create(credential="user:thief", key="k", path=other.path, status=201, encrypted=encrypted)
    with pytest.raises(idempotency.Misconfigured):
        idempotency.find(idempotency.KeyedRequest("user:thief", "k", other.path, "x"))


def test_a_crash_between_leaves_neither_the_change_nor_the_answer(
    admin: Api, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = idempotency.store

    def crash(*_: Any) -> None:
        raise RuntimeError("the process dies here")

    monkeypatch.setattr(idempotency, "store", crash)
    assert admin.send("POST", "projects", {"name": "p"}, idempotency_key="k").status_code == 500
    assert not Project.objects.filter(name="p").exists()
    assert not IdempotentAnswer.objects.exists()
    monkeypatch.setattr(idempotency, "store", real)
    assert admin.send("POST", "projects", {"name": "p"}, idempotency_key="k").status_code == 201


def race(count: int, client: Callable[[], Any]) -> list[Any]:
    barrier, answers = threading.Barrier(count), []

    def one() -> None:
        try:
            barrier.wait()
            answers.append(client())
        finally:
            connection.close()

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


@pytest.mark.django_db(transaction=True)
def test_four_at_once_make_one_token(admin_user: User, team: Team) -> None:
    token = issue_token(admin_user, team, "test", scopes=list(Scope))[1]

    def ask() -> Any:
        client = Api()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
        return client.send("POST", "tokens", {"name": "once"}, idempotency_key="k")

    answers = race(4, ask)
    assert [answer.status_code for answer in answers] == [201] * 4, [answer.content for answer in answers]
    assert len({answer.json()["token"] for answer in answers}) == 1
    assert ApiToken.objects.filter(name="once").count() == 1
    assert sum(answer.has_header("Idempotency-Replayed") for answer in answers) == 3


@pytest.mark.django_db(transaction=True)
def test_two_uploads_at_once_make_one_data_set(admin_user: User, team: Team, bucket: str) -> None:
    token = issue_token(admin_user, team, "test", scopes=list(Scope))[1]

    def ask() -> Any:
        client = Api()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
        return send(client, "datasets?name=words", "some words", idempotency_key="k")

    answers = race(2, ask)
    assert [answer.status_code for answer in answers] == [201] * 2, [answer.content for answer in answers]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert Dataset.objects.filter(team=team).count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_request_in_progress_is_answered_409_with_retry_after(
    admin_user: User, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "MAX_WAIT_MILLISECONDS", 50)
    row, token = issue_token(admin_user, team, "test", scopes=list(Scope))
    request = idempotency.KeyedRequest(f"token:{row.id}", "k", "/api/v1/tokens", "")
    locked, done = threading.Event(), threading.Event()

    def make() -> idempotency.Answer:
        locked.set()
        done.wait(30)
        return idempotency.Answer(201, "{}")

    def hold() -> None:
        try:
            idempotency.once(request, make)
        finally:
            connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert locked.wait(30)
        client = Api()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
        answer = client.send("POST", "tokens", {"name": "once"}, idempotency_key="k")
    finally:
        done.set()
        thread.join()
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (409, "request_in_progress", "1")
    assert not ApiToken.objects.filter(name="once").exists()


def test_an_invitation_that_a_new_user_accepts_is_answered_again(team: Team, admin_user: User) -> None:
    secret = members.invite(team, Role.MEMBER, 1, "", admin_user)[1]
    body = {"token": secret, "username": "newcomer", "password": "a long enough one 81"}
    first = Api().send("POST", "invitations:accept", body, idempotency_key="k")
    again = Api().send("POST", "invitations:accept", body, idempotency_key="k")
    assert (first.status_code, again.status_code, again["Idempotency-Replayed"]) == (201, 201, "true")
    assert User.objects.filter(username="newcomer").count() == 1
    other = Api().send("POST", "invitations:accept", {**body, "password": "another long one 7"}, idempotency_key="k")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    stranger = Api().send("POST", "invitations:accept", {**body, "token": "x"}, idempotency_key="k")
    assert stranger.status_code == 401


def test_answers_expire_and_are_swept(admin: Api) -> None:
    admin.send("POST", "tokens", {"name": "a"}, idempotency_key="k")
    admin.send("POST", "tokens", {"name": "a"}, idempotency_key="young")
    before = timezone.now() - idempotency.STORED_FOR - timedelta(seconds=1)
    IdempotentAnswer.objects.filter(key="k").update(created_at=before)
    assert idempotency.expired().count() == 1
    again = admin.send("POST", "tokens", {"name": "a"}, idempotency_key="k")
    assert (again.status_code, again.has_header("Idempotency-Replayed")) == (201, False)
    IdempotentAnswer.objects.filter(key="k").update(created_at=before)
    assert idempotency.sweep() == 1
    assert [row.key for row in IdempotentAnswer.objects.all()] == ["young"]


def test_a_new_master_key_rewraps_answers(admin: Api, settings: Any) -> None:
    old, new = settings.ATHANOR.master_key, encryption.new_wrapping_keyset()

    def start_with(current: str, previous: str) -> None:
        update = {"master_key": current, "previous_master_key": previous}
        settings.ATHANOR = settings.ATHANOR.model_copy(update=update)

    first = admin.send("POST", "tokens", {"name": "a"}, idempotency_key="k").json()
    start_with(new, old)
    idempotency.rewrap()
    start_with(new, "")
    row = IdempotentAnswer.objects.get()
    assert encryption.is_wrapped_by(new, row.encrypted)
    assert first["token"] in encryption.unwrap_by_master(row.encrypted, idempotency._owner(row))
    start_with(encryption.new_wrapping_keyset(), "")
    idempotency.rewrap()
    assert not IdempotentAnswer.objects.exists(), "no key opens it any more"


def test_nothing_else_was_made(admin: Api, filled: Callable[[Any], Any], team: Team) -> None:
    counts = {model: model.objects.count() for model in (Webhook, Invitation, Artifact)}
    for _ in range(3):
        send(admin, "webhooks", {"url": "https://example.org/hook", "team": "red"}, idempotency_key="w")
        send(admin, f"teams/{team.id}/invitations", {"role": "member"}, idempotency_key="i")
    assert {model: model.objects.count() for model in counts} == {
        Webhook: counts[Webhook] + 1,
        Invitation: counts[Invitation] + 1,
        Artifact: counts[Artifact],
    }
