"""Password changes and resets, and ending of sessions: each ends the stated sessions and no others."""

import json
from typing import Any

import pytest
from django.test import Client

from athanor.accounts import passwords
from athanor.accounts.models import AuditEvent, User
from athanor.core.errors import Forbidden

pytestmark = pytest.mark.django_db
OLD, NEW = "correct horse battery", "another horse battery"


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def ada(user: User) -> User:
    user.set_password(OLD)
    user.save()
    return user


class Browser(Client):
    def send(self, method: str, path: str, body: Any = None) -> Any:
        return self.generic(method, f"/api/v1/{path}", data=_json(body), content_type="application/json")

    def sign_in(self, password: str = OLD) -> int:
        return int(self.send("POST", "session", {"username": "ada", "password": password}).status_code)

    @property
    def is_signed_in(self) -> bool:
        return bool(self.get("/api/v1/session").json()["authenticated"])


def _json(body: Any) -> bytes:
    return b"" if body is None else json.dumps(body).encode()


def change(browser: Browser, current: str = OLD, new: str = NEW) -> Any:
    return browser.send("POST", "session:change-password", {"current_password": current, "new_password": new})


def test_a_password_is_changed_and_other_sessions_end(ada: User) -> None:
    here, there = Browser(), Browser()
    assert (here.sign_in(), there.sign_in()) == (200, 200)
    assert change(here).status_code == 204
    assert (here.is_signed_in, there.is_signed_in) == (True, False)
    assert [row["current"] for row in here.get("/api/v1/sessions").json()["items"]] == [True]
    assert (Browser().sign_in(OLD), Browser().sign_in(NEW)) == (401, 200)
    assert AuditEvent.objects.filter(action="user.password_change", target_id=ada.pk).count() == 1


def test_a_wrong_current_password_changes_nothing_and_is_delayed_like_a_sign_in(ada: User) -> None:
    browser = Browser()
    browser.sign_in()
    answers = [change(browser, current="wrong") for _ in range(8)]
    assert {answer.status_code for answer in answers[:5]} == {401}
    assert 429 in {answer.status_code for answer in answers}
    assert Browser().sign_in(OLD) == 200


def test_a_weak_password_is_refused_with_its_reason(ada: User) -> None:
    browser = Browser()
    browser.sign_in()
    answer = change(browser, new="short")
    assert (answer.status_code, answer.json()["code"]) == (422, "weak_password")
    assert "at least 8 characters" in answer.json()["detail"]
    assert Browser().sign_in(OLD) == 200


def test_a_token_neither_changes_the_password_nor_sees_sessions(ada: User, api: Any) -> None:
    body = {"current_password": OLD, "new_password": NEW}
    assert api.send("POST", "session:change-password", body).status_code in (401, 403)
    assert api.send("GET", "sessions").status_code in (401, 403)


def test_sessions_are_listed_and_ended(ada: User, make_user: Any, team: Any) -> None:
    here, there, third = Browser(), Browser(HTTP_USER_AGENT="Firefox"), Browser()
    for browser in (here, there, third):
        browser.sign_in()
    rows = here.get("/api/v1/sessions").json()["items"]
    assert [row["current"] for row in rows].count(True) == 1
    (firefox,) = [row for row in rows if row["browser"] == "Firefox"]
    assert here.delete(f"/api/v1/sessions/{firefox['id']}").status_code == 204
    assert (here.is_signed_in, there.is_signed_in, third.is_signed_in) == (True, False, True)
    assert here.delete(f"/api/v1/sessions/{firefox['id']}").status_code == 404
    assert here.send("POST", "sessions:end-others").json() == {"ended": 1}
    assert (here.is_signed_in, third.is_signed_in) == (True, False)
    assert AuditEvent.objects.filter(action="session.revoke").count() == 2


def test_nobody_ends_the_session_of_another(ada: User, make_user: Any, team: Any) -> None:
    other = make_user("grace", team)
    other.set_password(OLD)
    other.save()
    mine, theirs = Browser(), Browser()
    mine.sign_in()
    theirs.send("POST", "session", {"username": "grace", "password": OLD})
    (row,) = theirs.get("/api/v1/sessions").json()["items"]
    assert mine.delete(f"/api/v1/sessions/{row['id']}").status_code == 404
    assert theirs.is_signed_in


def test_a_reset_link_works_once(ada: User, make_user: Any, team: Any, settings: Any) -> None:
    admin = make_user("root", team)
    signed_in = Browser()
    signed_in.sign_in()
    address, _, token = passwords.reset_link(ada, admin).partition("#")
    assert address == f"{settings.ATHANOR.public_url}/reset-password"

    def reset(given: str, password: str = NEW) -> int:
        body = {"token": given, "new_password": password}
        return int(Browser().send("POST", "session:reset-password", body).status_code)

    assert reset(token[:-3] + "abc") == 401
    assert reset(token, "short") == 422
    assert reset(token) == 204
    assert reset(token) == 401
    assert not signed_in.is_signed_in
    assert (Browser().sign_in(OLD), Browser().sign_in(NEW)) == (401, 200)
    assert AuditEvent.objects.filter(action="user.password_reset_link", actor="root").count() == 1


def test_there_is_no_link_for_who_cannot_sign_in(ada: User, make_user: Any, team: Any) -> None:
    robot = User.objects.create(username="ci@red", service_team=team)
    with pytest.raises(Forbidden, match="cannot sign in"):
        passwords.reset_link(robot, ada)


def test_an_administrator_makes_the_link_and_not_for_a_superuser(ada: User, make_user: Any, team: Any) -> None:
    operator = make_user("ops", team)
    operator.platform_role, operator.is_staff = "platform_admin", True
    operator.save()
    root = User.objects.create(username="root", is_superuser=True)
    browser = Client()
    browser.force_login(operator)
    chosen = {"action": "make_password_reset_link", "_selected_action": [ada.pk, root.pk]}
    page = browser.post("/admin/accounts/user/", chosen, follow=True).content.decode()
    assert page.count("/reset-password#") == 1
    assert "only a superuser" in page
