"""Throttling of password guesses and of excessive requests; Django's deployment checks pass with https."""

import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client, RequestFactory
from redis.exceptions import ConnectionError as ValkeyAway

from athanor.accounts import devices
from athanor.accounts import throttling as throttling_of_sign_in
from athanor.accounts.models import AuditEvent, SignInTries, User
from athanor.api import throttling
from athanor.core.errors import TooManyRequests

pytestmark = pytest.mark.django_db
REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def ada(user: User) -> User:
    user.set_password("correct horse battery")
    user.save()
    return user


def sign_in(client: Any, password: str, name: str = "ada", address: str = "10.0.0.1") -> Any:
    body = {"username": name, "password": password}
    return client.post("/api/v1/session", body, content_type="application/json", REMOTE_ADDR=address)


def time_passes(seconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE accounts_signintries SET free_at = free_at - %(by)s, window_ends = window_ends - %(by)s",
            {"by": timedelta(seconds=seconds)},
        )


def hold_delays() -> None:
    """Lengthen delays by a minute, so that they outlast the test on a loaded machine."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE accounts_signintries SET free_at = free_at + interval '1 minute' "
            "WHERE free_at > window_ends - %s + interval '0.5 seconds'",
            [throttling_of_sign_in.WINDOW],
        )


def retry_after(answer: Any) -> int:
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_sign_ins")
    return int(answer["Retry-After"])


def delays() -> list[int]:
    """In whole seconds, of each count: both times are of one statement."""
    rows = SignInTries.objects.values_list("free_at", "window_ends")
    return sorted(round((free_at - ends + throttling_of_sign_in.WINDOW).total_seconds()) for free_at, ends in rows)


def test_delays_double_with_each_failure_and_a_refused_try_is_not_counted(client: Any, ada: User) -> None:
    assert [sign_in(client, "wrong").status_code for _ in range(4)] == [401] * 4
    found = []
    for _ in range(5):
        assert sign_in(client, "wrong").status_code == 401
        found.append(delays()[-1])
        hold_delays()
        assert [sign_in(client, "correct horse battery").status_code for _ in range(3)] == [429] * 3
        time_passes(60 + found[-1])
    assert found == [1, 2, 4, 8, 16]
    assert AuditEvent.objects.filter(action="session.refuse").count() == 9, "a refused try looks at no password"
    time_passes(15 * 60)
    assert sign_in(client, "correct horse battery").status_code == 200


def test_one_machine_locks_nobody_out(client: Any, ada: User, make_user: Any, team: Any) -> None:
    """52 wrong passwords from one address once locked the name everywhere, and everybody at that address."""
    neighbour = make_user("grace", team)
    neighbour.set_password("correct horse battery")
    neighbour.save()
    for _ in range(60):
        sign_in(client, "wrong")
        time_passes(1)
    assert sign_in(Client(), "correct horse battery", address="10.0.0.2").status_code == 200
    assert sign_in(Client(), "correct horse battery", name="grace").status_code == 200


def test_the_correct_password_from_a_known_device_is_always_taken(client: Any, ada: User) -> None:
    assert sign_in(client, "correct horse battery").status_code == 200
    known = Client()
    known.cookies.update({name: value for name, value in client.cookies.items() if name.startswith("athanor_device_")})
    assert known.cookies, "the sign-in left a device cookie"
    SignInTries.objects.all().delete()
    for number in range(55):  # many machines guess the name, and one of them is at its owner's address
        sign_in(Client(), "wrong", address=f"10.1.{number}.1")
        sign_in(Client(), "wrong")
    hold_delays()
    retry_after(sign_in(Client(), "correct horse battery", address="10.2.0.1"))
    assert sign_in(known, "correct horse battery").status_code == 200


def test_a_device_cookie_is_of_one_user_and_one_password(client: Any, ada: User, make_user: Any, team: Any) -> None:
    sign_in(client, "correct horse battery")
    cookie = next(value for name, value in client.cookies.items() if name.startswith("athanor_device_"))
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
    request = RequestFactory().get("/")
    request.COOKIES = {cookie.key: cookie.value}
    assert devices.device_of(request, "ada")
    other = make_user("grace", team)
    forged = devices._cookie_name(other.username)
    request.COOKIES = {forged: cookie.value}
    assert devices.device_of(request, "grace") == ""
    request.COOKIES = {cookie.key: cookie.value[:-2] + "xx"}
    assert devices.device_of(request, "ada") == ""
    request.COOKIES = {cookie.key: cookie.value}
    ada.set_password("another horse battery")
    ada.save()
    assert devices.device_of(request, "ada") == ""


def test_a_known_device_is_delayed_by_its_own_failures_alone(client: Any, ada: User) -> None:
    sign_in(client, "correct horse battery")
    assert [sign_in(client, "wrong").status_code for _ in range(5)] == [401] * 5
    hold_delays()
    retry_after(sign_in(client, "correct horse battery"))
    assert sign_in(Client(), "correct horse battery").status_code == 200


def test_the_correct_password_ends_the_delays_of_its_pair(client: Any, ada: User) -> None:
    for _ in range(3):
        assert [sign_in(Client(), "wrong").status_code for _ in range(4)] == [401] * 4
        assert sign_in(Client(), "correct horse battery").status_code == 200


def test_many_names_from_one_address_are_delayed_and_unknown_names_look_like_known_ones(client: Any, ada: User) -> None:
    assert [sign_in(client, "wrong", name="nobody").status_code for _ in range(5)] == [401] * 5
    hold_delays()
    retry_after(sign_in(client, "wrong", name="nobody"))
    time_passes(60)
    for number in range(50):
        sign_in(client, "wrong", name=f"someone{number}")
    hold_delays()
    retry_after(sign_in(client, "wrong", name="another"))
    assert "nobody" not in str(list(SignInTries.objects.values()))


def test_the_addresses_of_one_ipv6_network_are_one(client: Any, ada: User) -> None:
    tries = [sign_in(client, "wrong", address=f"2001:db8::{number}").status_code for number in range(1, 6)]
    assert tries == [401] * 5
    hold_delays()
    retry_after(sign_in(client, "wrong", address="2001:db8::6"))


def test_an_administrator_ends_the_delays_of_a_user(client: Any, ada: User, admin_client: Any) -> None:
    for _ in range(5):
        sign_in(client, "wrong")
    hold_delays()
    retry_after(sign_in(client, "correct horse battery"))
    chosen = {"action": "end_sign_in_delays", "_selected_action": [ada.pk]}
    answer = admin_client.post("/admin/accounts/user/", chosen, follow=True)
    assert b"Delays ended: 1" in answer.content
    assert AuditEvent.objects.filter(action="user.unlock", target_id=ada.pk).count() == 1
    assert sign_in(client, "correct horse battery").status_code == 200


@pytest.mark.django_db(transaction=True)
def test_tries_at_the_same_moment_are_all_counted() -> None:
    """Many concurrent connections do not get more tries than one after another."""
    with ThreadPoolExecutor(8) as threads:
        outcomes = list(threads.map(lambda _: _try_once(), range(24)))
    assert outcomes.count("taken") == 5


def _try_once() -> str:
    try:
        throttling_of_sign_in.begin("rushed", "10.9.9.9")
    except TooManyRequests:
        return "refused"
    finally:
        connection.close()
    return "taken"


def test_the_admins_page_is_throttled_too(client: Any, ada: User) -> None:
    User.objects.update(is_staff=True)
    for _ in range(5):
        client.post("/admin/login/", {"username": "ada", "password": "wrong"})
    hold_delays()
    answer = client.post("/admin/login/", {"username": "ada", "password": "correct horse battery"})
    assert b"too many failed tries" in answer.content
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

    monkeypatch.setattr(throttling._Outage, "until", 0.0)  # and it is what it was for the tests that follow
    monkeypatch.setattr(throttling, "_count", away)
    assert [api.send("GET", "clusters").status_code for _ in range(5)] == [200] * 5
    assert [record.message for record in caplog.records].count(
        "requests are not counted for 5 s, Valkey is unavailable: refused"
    ) == 1  # fmt: skip


def test_the_settings_for_https_pass_djangos_deployment_check() -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{REPOSITORY / 'platform'}:{REPOSITORY}",
        "DATABASE_URL": os.environ["DATABASE_URL"],
        "ATHANOR_PUBLIC_URL": "https://athanor.example",
        "ATHANOR_ALLOWED_HOSTS": "athanor.example",
        "ATHANOR_TRUSTED_PROXIES": "192.0.2.0/24",
        "ATHANOR_SECRET_KEY": secrets.token_urlsafe(60),
        "ATHANOR_MASTER_KEY": os.environ["ATHANOR_MASTER_KEY"],
    }
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "no issues" in done.stdout) == (0, True), done.stderr
