"""Guessing passwords is slow, a loop gone wild is stopped, and the settings for https leave nothing to remark."""

import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from redis.exceptions import ConnectionError as ValkeyAway

from athanor.accounts.models import AuditEvent, SignInTries, User
from athanor.api import throttling

pytestmark = pytest.mark.django_db
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def ada(user: User) -> User:
    user.set_password("correct horse battery")
    user.save()
    return user


def sign_in(client: Any, password: str, name: str = "ada", address: str = "10.0.0.1") -> Any:
    body = {"username": name, "password": password}
    return client.post("/api/v1/session", body, content_type="application/json", REMOTE_ADDR=address)


def window_passes() -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE accounts_signintries SET window_ends = now() - interval '1 second'")


def test_the_sixth_wrong_password_is_not_even_looked_at(client: Any, ada: User) -> None:
    assert [sign_in(client, "wrong").status_code for _ in range(5)] == [401] * 5
    refused = sign_in(client, "correct horse battery")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_sign_ins")
    assert 0 < int(refused["Retry-After"]) <= 901
    assert AuditEvent.objects.filter(action="session.refuse").count() == 5
    assert sign_in(client, "correct horse battery", address="10.0.0.2").status_code == 200, "ada is not locked out"
    window_passes()
    assert sign_in(client, "correct horse battery").status_code == 200


def test_a_right_password_starts_the_count_anew(client: Any, ada: User) -> None:
    for _ in range(3):
        assert [sign_in(client, "wrong").status_code for _ in range(4)] == [401] * 4
        assert sign_in(client, "correct horse battery").status_code == 200


def test_many_names_from_one_address_are_stopped_and_unknown_names_look_like_known_ones(client: Any, ada: User) -> None:
    unknown = [sign_in(client, "wrong", name="nobody").status_code for _ in range(6)]
    assert unknown == [401] * 5 + [429]
    SignInTries.objects.update(count=50)
    assert sign_in(client, "wrong", name="someone").status_code == 429
    assert "nobody" not in str(list(SignInTries.objects.values()))


def test_the_admins_page_is_throttled_too(client: Any, ada: User) -> None:
    User.objects.update(is_staff=True)
    for _ in range(5):
        client.post("/admin/login/", {"username": "ada", "password": "wrong"})
    answer = client.post("/admin/login/", {"username": "ada", "password": "correct horse battery"})
    assert b"too many tries" in answer.content
    assert sign_in(client, "correct horse battery", address="127.0.0.1").status_code == 429


def test_a_service_account_cannot_sign_in(client: Any, team: Any) -> None:
    robot = User.objects.create(username="ci@red", service_team=team)
    robot.set_password("correct horse battery")  # even if somebody gave it a password
    robot.save()
    assert sign_in(client, "correct horse battery", name="ci@red").status_code == 401


@pytest.fixture
def limit(settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"rate_limit_per_minute": 3})


def test_requests_are_counted_and_told(api: Any, limit: None) -> None:
    answers = [api.send("GET", "clusters") for _ in range(4)]
    if len({answer["RateLimit-Reset"] for answer in answers}) > 1 and answers[-1].status_code == 200:
        answers = [api.send("GET", "clusters") for _ in range(4)]  # a minute went by between them
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert [answer["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert answers[0]["RateLimit-Limit"] == "3"
    assert (answers[-1].json()["code"], answers[-1]["Retry-After"]) == ("rate_limited", answers[-1]["RateLimit-Reset"])


def test_without_valkey_requests_go_through(api: Any, limit: None, monkeypatch: Any, caplog: Any) -> None:
    def away(key: str) -> int:
        raise ValkeyAway("refused")

    monkeypatch.setattr(throttling._Away, "until", 0.0)  # and it is what it was for the tests that follow
    monkeypatch.setattr(throttling, "_count", away)
    assert [api.send("GET", "clusters").status_code for _ in range(5)] == [200] * 5
    assert [record.message for record in caplog.records].count(
        "requests are not counted for 5 s, Valkey is away: refused"
    ) == 1  # fmt: skip


def test_the_settings_for_https_pass_djangos_deployment_check() -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{REPOSITORY / 'platform'}:{REPOSITORY}",
        "DATABASE_URL": os.environ["DATABASE_URL"],
        "ATHANOR_PUBLIC_URL": "https://athanor.example",
        "ATHANOR_ALLOWED_HOSTS": "athanor.example",
        "ATHANOR_SECRET_KEY": secrets.token_urlsafe(60),
        "ATHANOR_MASTER_KEY": os.environ["ATHANOR_MASTER_KEY"],
    }
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "no issues" in done.stdout) == (0, True), done.stderr
