"""Second factors: required at sign-in by those who have one, no code works twice, secrets are stored encrypted."""

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone

from athanor.accounts import passwords, second_factors, throttling
from athanor.accounts.models import AuditEvent, SignInTries, User
from athanor.accounts.roles import PlatformRole
from athanor.artifacts import rotation
from athanor.core.encryption import new_wrapping_keyset
from tests.control_plane.accounts.authenticators import SecurityKey, totp

pytestmark = pytest.mark.django_db
PASSWORD, NEW = "correct horse battery", "another horse battery"


@pytest.fixture(autouse=True)
def quick_passwords(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


@pytest.fixture
def ada(user: User) -> User:
    user.set_password(PASSWORD)
    user.save()
    return user


@pytest.fixture
def public(settings: Any) -> str:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"public_url": "https://athanor.example"})
    settings.ALLOWED_HOSTS = ["*"]
    return "https://athanor.example"


class Browser(Client):
    def send(self, method: str, path: str, body: Any = None, **extra: Any) -> Any:
        data = b"" if body is None else json.dumps(body).encode()
        return self.generic(method, f"/api/v1/{path}", data=data, content_type="application/json", **extra)

    def password(self, password: str = PASSWORD, name: str = "ada") -> Any:
        return self.send("POST", "session", {"username": name, "password": password})

    def code(self, code: str) -> Any:
        return self.send("POST", "session:second-factor", {"code": code})

    def confirm(self, path: str, password: str = PASSWORD) -> Any:
        return self.send("POST", f"second-factors/{path}", {"current_password": password})

    @property
    def is_signed_in(self) -> bool:
        return bool(self.get("/api/v1/session").json()["authenticated"])


class App:
    """The authenticator app of a user; codes of later steps are taken from ahead, as time does not pass in a test."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def code(self, steps: int = 0) -> str:
        return totp(self.secret, time.time() + 30 * steps)


@pytest.fixture
def browser(ada: User) -> Browser:
    found = Browser()
    assert found.password().status_code == 200
    return found


def add_app(browser: Browser) -> tuple[App, list[str]]:
    """Confirmed with the code of the step before, so that the one of now is unused."""
    app = App(browser.confirm("authenticator-app:begin").json()["secret"])
    answer = browser.send("POST", "second-factors/authenticator-app:confirm", {"code": app.code(-1)})
    assert answer.status_code == 200, answer.content
    return app, answer.json()["recovery_codes"]


def hold_delay_of_codes() -> None:
    """Lengthen the delay so that it outlasts the test on a loaded machine."""
    key = throttling._digest("factor", User.objects.get(username="ada").pk)
    assert SignInTries.objects.filter(key=key).update(free_at=timezone.now() + timedelta(minutes=1)) == 1


def audited(action: str) -> list[Any]:
    return list(AuditEvent.objects.filter(action=action).order_by("seq"))


def test_a_correct_password_alone_does_not_sign_in(browser: Browser, ada: User) -> None:
    app, _ = add_app(browser)
    fresh = Browser()
    answer = fresh.password()
    assert (answer.status_code, answer.json()["code"]) == (401, "second_factor_required")
    assert answer.json()["kinds"] == ["authenticator_app", "recovery_code"]
    assert not fresh.is_signed_in
    assert fresh.get("/api/v1/session").json()["second_factor"] == {"kinds": ["authenticator_app", "recovery_code"]}
    assert fresh.send("GET", "jobs").status_code in (401, 403)
    assert not [name for name in fresh.cookies if name.startswith("athanor_device_")], "no known device yet"
    before = fresh.cookies["sessionid"].value
    assert fresh.code(app.code()).status_code == 200
    assert fresh.is_signed_in
    assert fresh.cookies["sessionid"].value != before, "the session's key is new"
    (used,) = audited("second_factor.use")
    assert (used.actor, used.after) == ("ada", {"kind": "authenticator_app"})


def test_a_wrong_password_with_a_right_code_is_refused(browser: Browser) -> None:
    app, _ = add_app(browser)
    fresh = Browser()
    assert fresh.password("wrong").json()["code"] == "invalid_credentials"
    answer = fresh.code(app.code())
    assert (answer.status_code, answer.json()["code"]) == (401, "sign_in_expired")


def test_a_code_works_once_whichever_process_sees_it(browser: Browser) -> None:
    app, _ = add_app(browser)
    first, second = Browser(), Browser()
    first.password()
    second.password()
    code = app.code()
    assert first.code(code).status_code == 200
    again = second.code(code)
    assert (again.status_code, again.json()["code"]) == (401, "wrong_second_factor")
    assert second.code(app.code(-1)).status_code == 401, "nor an older one"
    assert second.code(app.code(1)).status_code == 200
    assert Authenticator.objects.get(type="totp").data["last_step"] >= int(time.time()) // 30


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["authenticator_app", "recovery_code"])
def test_of_many_processes_at_once_one_takes_a_code(browser: Browser, ada: User, kind: str) -> None:
    app, codes = add_app(browser)
    code = app.code() if kind == "authenticator_app" else codes[0]

    def use(_: int) -> str:
        try:
            with transaction.atomic():
                return second_factors._use_code(ada, code)
        finally:
            connection.close()

    with ThreadPoolExecutor(6) as threads:
        used = list(threads.map(use, range(12)))
    assert sorted(used) == [""] * 11 + [kind]


def test_codes_of_other_minutes_are_wrong(browser: Browser) -> None:
    app, _ = add_app(browser)
    fresh = Browser()
    fresh.password()
    assert [fresh.code(app.code(steps)).status_code for steps in (-20, 20)] == [401, 401]


def test_a_recovery_code_works_once(browser: Browser) -> None:
    _, codes = add_app(browser)
    assert (len(codes), len(set(codes))) == (10, 10)
    fresh = Browser()
    fresh.password()
    assert fresh.code(codes[3]).status_code == 200
    assert fresh.get("/api/v1/second-factors").json()["recovery_codes_left"] == 9
    other = Browser()
    other.password()
    assert other.code(codes[3]).status_code == 401
    assert other.code(f"{codes[4][:5]} {codes[4][5:]}").status_code == 200, "spaces do not matter"
    assert [event.after["kind"] for event in audited("second_factor.use")] == ["recovery_code"] * 2


def test_new_recovery_codes_replace_the_old(browser: Browser) -> None:
    assert browser.confirm("recovery-codes:generate").json()["code"] == "no_second_factor"
    _, old = add_app(browser)
    assert browser.confirm("recovery-codes:generate", "wrong").json()["code"] == "wrong_password"
    new = browser.confirm("recovery-codes:generate").json()["recovery_codes"]
    assert not set(old) & set(new)
    fresh = Browser()
    fresh.password()
    assert (fresh.code(old[0]).status_code, fresh.code(new[0]).status_code) == (401, 200)


def test_the_pending_step_is_of_one_browser_and_short(browser: Browser, ada: User) -> None:
    app, _ = add_app(browser)
    first = Browser()
    first.password()
    assert Browser().code(app.code()).json()["code"] == "sign_in_expired", "another browser has no pending step"
    session = first.session
    session["athanor.second_factor.pending"]["at"] -= second_factors.PENDING_SECONDS + 1
    session.save()
    assert first.code(app.code()).json()["code"] == "sign_in_expired"
    assert first.get("/api/v1/session").json()["second_factor"] is None
    first.password()
    ada.set_password(NEW)
    ada.save()
    assert first.code(app.code()).json()["code"] == "sign_in_expired", "a new password ends it"
    first.password(NEW)
    User.objects.update(is_active=False)
    assert first.code(app.code()).json()["code"] == "sign_in_expired"


def test_the_sessions_key_changes_with_the_first_step_too(browser: Browser) -> None:
    add_app(browser)
    victim = Browser()
    session = victim.session  # one that an attacker may know
    session["planted"] = True
    session.save()
    planted = session.session_key
    victim.password()
    assert victim.cookies["sessionid"].value != planted


def test_wrong_codes_are_delayed_and_a_correct_password_ends_no_delay(browser: Browser) -> None:
    app, _ = add_app(browser)
    attacker = Browser()
    for _ in range(5):
        assert attacker.password().json()["code"] == "second_factor_required"
        assert attacker.code("000000" if app.code() != "000000" else "111111").status_code == 401
    hold_delay_of_codes()
    assert len(audited("session.refuse")) == 5
    assert {event.after["step"] for event in audited("session.refuse")} == {"second_factor"}
    known = Browser()
    known.cookies.update({name: value for name, value in browser.cookies.items() if name.startswith("athanor_device_")})
    attacker.password()
    answer = attacker.code(app.code())
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_sign_ins")
    assert int(answer["Retry-After"]) > 0
    known.password()
    assert known.code(app.code()).status_code == 200, "the owner's known browser is not held up"


def test_an_administrator_ends_the_delays_of_codes(browser: Browser, admin_client: Any, ada: User) -> None:
    app, _ = add_app(browser)
    attacker = Browser()
    attacker.password()
    for _ in range(5):
        attacker.code("x")
    hold_delay_of_codes()
    assert attacker.code(app.code()).status_code == 429
    admin_client.post("/admin/accounts/user/", {"action": "end_sign_in_delays", "_selected_action": [ada.pk]})
    fresh = Browser()
    fresh.password()
    assert fresh.code(app.code()).status_code == 200


def test_a_known_device_skips_nothing(browser: Browser) -> None:
    add_app(browser)
    assert browser.send("DELETE", "session").status_code == 204
    assert [name for name in browser.cookies if name.startswith("athanor_device_")]
    assert browser.password().json()["code"] == "second_factor_required"


def test_a_new_password_by_a_link_leaves_the_second_factor_on(browser: Browser, ada: User, make_user: Any) -> None:
    app, _ = add_app(browser)
    link = passwords.reset_link(ada, User.objects.create(username="root"))
    fresh = Browser()
    body = {"token": link.partition("#")[2], "new_password": NEW}
    assert fresh.send("POST", "session:reset-password", body).status_code == 204
    assert not fresh.is_signed_in
    assert fresh.password(NEW).json()["code"] == "second_factor_required"
    assert fresh.code(app.code()).status_code == 200


def test_the_admins_page_is_no_way_around_it(browser: Browser, ada: User) -> None:
    User.objects.update(is_staff=True, is_superuser=True, platform_role=PlatformRole.PLATFORM_ADMIN.value)
    app, _ = add_app(browser)
    fresh = Browser()
    page = fresh.post("/admin/login/", {"username": "ada", "password": PASSWORD})
    assert '<a href="/sign-in?next=/admin/">' in page.content.decode()
    assert not fresh.is_signed_in
    assert fresh.get("/admin/").status_code == 302
    fresh.password()
    assert fresh.get("/admin/").status_code == 302, "nor is the first step enough"
    fresh.code(app.code())
    assert fresh.get("/admin/").status_code == 200


def test_tokens_work_as_before_and_change_no_factor(browser: Browser, api: Any) -> None:
    add_app(browser)
    assert api.send("GET", "jobs").status_code == 200
    assert api.send("GET", "second-factors").status_code in (401, 403)
    body = {"current_password": PASSWORD}
    assert api.send("POST", "second-factors/authenticator-app:remove", body).status_code in (401, 403)
    assert Authenticator.objects.filter(type="totp").exists()


def test_setting_up_needs_the_password_and_a_correct_code(browser: Browser) -> None:
    assert browser.confirm("authenticator-app:begin", "wrong").json()["code"] == "wrong_password"
    confirm = "second-factors/authenticator-app:confirm"
    assert browser.send("POST", confirm, {"code": "000000"}).json()["code"] == "setup_expired"
    setup = browser.confirm("authenticator-app:begin").json()
    assert setup["uri"] == f"otpauth://totp/ada?secret={setup['secret']}&issuer=Athanor"
    assert setup["qr_svg"].startswith("<?xml") and "script" not in setup["qr_svg"]
    app = App(setup["secret"])
    assert browser.send("POST", confirm, {"code": app.code(9)}).json()["code"] == "wrong_second_factor"
    assert Browser().password().status_code == 200, "an unconfirmed app locks nobody out"
    session = browser.session
    session["athanor.second_factor.setup"]["at"] -= second_factors.SETUP_SECONDS + 1
    session.save()
    assert browser.send("POST", confirm, {"code": app.code()}).json()["code"] == "setup_expired"
    app, _ = add_app(browser)
    assert browser.confirm("authenticator-app:begin").json()["code"] == "authenticator_app_exists"
    assert browser.get("/api/v1/second-factors").json()["authenticator_app_since"] is not None


def test_the_code_that_confirmed_the_app_does_not_sign_in(browser: Browser) -> None:
    app = App(browser.confirm("authenticator-app:begin").json()["secret"])
    code = app.code()
    assert browser.send("POST", "second-factors/authenticator-app:confirm", {"code": code}).status_code == 200
    fresh = Browser()
    fresh.password()
    assert fresh.code(code).status_code == 401


def test_other_sessions_end_when_factors_change(browser: Browser) -> None:
    other = Browser()
    other.password()
    app, _ = add_app(browser)
    assert (browser.is_signed_in, other.is_signed_in) == (True, False)
    other.password()
    other.code(app.code())
    assert browser.confirm("authenticator-app:remove", "wrong").status_code == 401
    assert browser.confirm("authenticator-app:remove").status_code == 204
    assert (browser.is_signed_in, other.is_signed_in) == (True, False)
    assert not Authenticator.objects.exists(), "recovery codes go with the last factor"
    assert other.password().status_code == 200
    assert browser.confirm("authenticator-app:remove").status_code == 404
    actions = [event.action for event in AuditEvent.objects.filter(action__startswith="second_factor").order_by("seq")]
    assert actions == ["second_factor.add", "second_factor.recovery_codes", "second_factor.use", "second_factor.remove"]


def test_the_database_holds_no_secret_in_plain(browser: Browser, settings: Any) -> None:
    setup = browser.confirm("authenticator-app:begin").json()
    stored = json.dumps([session.get_decoded() for session in Session.objects.all()])
    assert "athanor.second_factor.setup" in stored
    assert setup["secret"] not in stored, "not even while it is set up"
    app = App(setup["secret"])
    codes = browser.send("POST", "second-factors/authenticator-app:confirm", {"code": app.code(-1)}).json()
    rows = json.dumps(list(Authenticator.objects.values("type", "data")))
    rows += json.dumps(list(AuditEvent.objects.values("before", "after")))
    assert setup["secret"] not in rows
    assert not [code for code in codes["recovery_codes"] if code in rows]
    seed = second_factors.FactorAdapter().decrypt(Authenticator.objects.get(type="recovery_codes").data["seed"])
    assert seed not in rows
    old, new = settings.ATHANOR.master_key, new_wrapping_keyset()
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"master_key": new, "previous_master_key": old})
    assert rotation.rotate_master() == 3, "app, codes and the audit trail's key"
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"previous_master_key": ""})
    fresh = Browser()
    fresh.password()
    assert fresh.code(app.code()).status_code == 200, "after the master key was replaced"


def test_an_administrator_removes_the_factors_of_who_lost_them(browser: Browser, ada: User) -> None:
    add_app(browser)
    root = User.objects.create(username="root", platform_role=PlatformRole.PLATFORM_ADMIN.value)
    chief = User.objects.create(username="chief", is_superuser=True)
    admin = Client()
    admin.force_login(root)
    chosen = {"action": "remove_second_factors", "_selected_action": [ada.pk, chief.pk]}
    page = admin.post("/admin/accounts/user/", chosen, follow=True).content.decode()
    assert "Second factors removed of: 1" in page
    assert "only a superuser" in page
    assert not browser.is_signed_in
    assert Browser().password().status_code == 200
    (event,) = audited("second_factor.remove_all")
    assert (event.actor, event.target_id) == ("root", ada.pk)
    assert event.before == {"kinds": "authenticator_app, recovery_code"}


def test_administrators_do_not_remove_their_own_without_the_password(browser: Browser, ada: User) -> None:
    User.objects.update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    add_app(browser)
    chosen = {"action": "remove_second_factors", "_selected_action": [ada.pk]}
    page = browser.post("/admin/accounts/user/", chosen, follow=True).content.decode()
    assert "removed with your password" in page
    assert Authenticator.objects.filter(type="totp").exists()


def test_an_operator_removes_them_by_a_command(browser: Browser) -> None:
    add_app(browser)
    out = io.StringIO()
    call_command("remove_second_factors", "ada", stdout=out)
    assert "authenticator_app" in out.getvalue()
    assert Browser().password().status_code == 200
    assert [event.actor for event in audited("second_factor.remove_all")] == ["operator"]
    with pytest.raises(CommandError, match="has no second factor"):
        call_command("remove_second_factors", "ada")
    with pytest.raises(CommandError, match="there is no user 'bob'"):
        call_command("remove_second_factors", "bob")


def test_who_has_no_password_adds_none(ada: User) -> None:
    browser = Browser()
    browser.force_login(ada)
    ada.set_unusable_password()
    ada.save()
    browser.force_login(ada)
    assert browser.confirm("authenticator-app:begin").json()["code"] == "no_password"
    assert browser.get("/api/v1/second-factors").json()["has_password"] is False


# Where the platform demands one


@pytest.fixture
def demand(settings: Any) -> Any:
    def make(value: str) -> None:
        settings.ATHANOR = settings.ATHANOR.model_copy(update={"require_second_factor": value})

    return make


def test_where_everyone_needs_one_who_has_none_can_only_set_one_up(browser: Browser, demand: Any, api: Any) -> None:
    assert browser.send("GET", "jobs").status_code == 200
    demand("everyone")
    refused = browser.send("GET", "jobs")
    assert (refused.status_code, refused.json()["code"]) == (403, "second_factor_setup_required")
    assert browser.send("POST", "tokens", {"name": "t"}).json()["code"] == "second_factor_setup_required"
    assert browser.get("/api/v1/session").json()["second_factor_setup_required"] is True
    assert browser.send("GET", "sessions").status_code == 200
    assert api.send("GET", "jobs").status_code == 200, "tokens work as before"
    add_app(browser)
    assert browser.send("GET", "jobs").status_code == 200
    assert browser.get("/api/v1/session").json()["second_factor_setup_required"] is False


def test_where_administrators_need_one_others_do_not(browser: Browser, demand: Any, ada: User) -> None:
    demand("admins")
    assert browser.send("GET", "jobs").status_code == 200
    User.objects.update(platform_role=PlatformRole.AUDITOR.value)
    assert browser.send("GET", "jobs").status_code == 403
    assert browser.get("/admin/").status_code == 302
    page = Browser().post("/admin/login/", {"username": "ada", "password": PASSWORD}).content.decode()
    assert '<a href="/account">' in page
    ada.set_unusable_password()
    ada.save()
    fresh = Browser()
    fresh.force_login(ada)
    assert fresh.send("GET", "jobs").status_code == 200, "the provider asks for its own"


# Passkeys


def add_passkey(browser: Browser, key: SecurityKey, name: str = "Yubikey") -> Any:
    options = browser.confirm("passkeys:begin").json()
    return browser.send("POST", "second-factors/passkeys", {"name": name, "credential": key.register(options)})


def test_a_passkey_is_the_second_step(browser: Browser, public: str) -> None:
    key = SecurityKey(public, "athanor.example")
    added = add_passkey(browser, key)
    assert added.status_code == 201, added.content
    assert len(added.json()["recovery_codes"]) == 10
    fresh = Browser()
    assert fresh.password().json()["kinds"] == ["passkey", "recovery_code"]
    options = fresh.send("POST", "session:passkey-challenge").json()
    assert options["publicKey"]["rpId"] == "athanor.example"
    answer = key.sign(options)
    assert fresh.send("POST", "session:second-factor", {"passkey": answer}).status_code == 200
    assert fresh.is_signed_in
    other = Browser()
    other.password()
    other.send("POST", "session:passkey-challenge")
    replayed = other.send("POST", "session:second-factor", {"passkey": answer})
    assert (replayed.status_code, replayed.json()["code"]) == (401, "wrong_second_factor")
    assert other.send("POST", "session:second-factor", {"passkey": answer}).json()["code"] == "challenge_expired"
    assert audited("second_factor.use")[0].after == {"kind": "passkey", "name": "Yubikey"}


def test_a_passkey_is_added_once_however_often_it_is_sent(browser: Browser, public: str) -> None:
    options = browser.confirm("passkeys:begin").json()
    body = {"name": "Yubikey", "credential": SecurityKey(public, "athanor.example").register(options)}
    first, second = (
        browser.send("POST", "second-factors/passkeys", body, HTTP_IDEMPOTENCY_KEY="add-1") for _ in range(2)
    )
    assert (first.status_code, second.status_code) == (201, 201), second.content
    assert second["Idempotency-Replayed"] == "true"
    assert second.json() == first.json()
    assert len(browser.get("/api/v1/second-factors").json()["passkeys"]) == 1


def test_the_name_of_the_platform_comes_from_its_settings_not_from_the_request(browser: Browser, public: str) -> None:
    body = {"current_password": PASSWORD}
    options = browser.send("POST", "second-factors/passkeys:begin", body, HTTP_HOST="evil.example").json()
    assert options["publicKey"]["rp"]["id"] == "athanor.example"
    for origin, rp_id in (
        ("https://evil.example", "evil.example"),
        ("https://evil.example", "athanor.example"),
        ("https://sub.athanor.example", "athanor.example"),
        ("http://athanor.example", "athanor.example"),
    ):
        refused = add_passkey(browser, SecurityKey(origin, rp_id))
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_passkey"), origin


def test_an_assertion_for_another_page_another_key_or_a_copy_is_refused(browser: Browser, public: str) -> None:
    key = SecurityKey(public, "athanor.example")
    add_passkey(browser, key)
    fresh = Browser()
    fresh.password()

    def attempt(signer: SecurityKey) -> int:
        options = fresh.send("POST", "session:passkey-challenge").json()
        SignInTries.objects.all().delete()
        return int(fresh.send("POST", "session:second-factor", {"passkey": signer.sign(options)}).status_code)

    stranger = SecurityKey(public, "athanor.example")
    assert attempt(stranger) == 401
    stranger.id = key.id
    assert attempt(stranger) == 401, "the id of the key with another signature"
    key.origin = "https://athanor.example.evil.test"
    assert attempt(key) == 401
    key.origin = public
    assert attempt(key) == 200
    fresh.send("DELETE", "session")
    fresh.password()
    key.count -= 1
    assert attempt(key) == 401, "the counter of a copy does not grow"


@pytest.mark.parametrize(
    "credential", [{}, {"id": 1}, {"id": "AA", "rawId": "AA", "response": {"clientDataJSON": "e30"}}]
)
def test_what_is_no_passkey_is_refused_with_a_reason(browser: Browser, public: str, credential: Any) -> None:
    browser.confirm("passkeys:begin")
    answer = browser.send("POST", "second-factors/passkeys", {"name": "x", "credential": credential})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_passkey")
    again = browser.send("POST", "second-factors/passkeys", {"name": "x", "credential": credential})
    assert again.json()["code"] == "challenge_expired"


def test_passkeys_are_listed_renamed_and_removed(browser: Browser, public: str, make_user: Any, team: Any) -> None:
    first, second = SecurityKey(public, "athanor.example"), SecurityKey(public, "athanor.example")
    assert len(add_passkey(browser, first, "one").json()["recovery_codes"]) == 10
    assert add_passkey(browser, second, "two").json()["recovery_codes"] == []
    assert add_passkey(browser, second, "two again").json()["code"] == "passkey_exists"
    rows = browser.get("/api/v1/second-factors").json()["passkeys"]
    assert [row["name"] for row in rows] == ["one", "two"]
    path = f"second-factors/passkeys/{rows[0]['id']}"
    assert browser.send("PATCH", path, {"name": "desk"}).json()["name"] == "desk"
    other = Browser()
    other.force_login(make_user("grace", team))
    assert other.send("PATCH", path, {"name": "mine"}).status_code == 404
    assert browser.send("POST", f"{path}:remove", {"current_password": "wrong"}).status_code == 401
    assert browser.send("POST", f"{path}:remove", {"current_password": PASSWORD}).status_code == 204
    assert Browser().password().status_code == 401
    last = f"second-factors/passkeys/{rows[1]['id']}:remove"
    assert browser.send("POST", last, {"current_password": PASSWORD}).status_code == 204
    assert Browser().password().status_code == 200
    assert [event.before for event in audited("second_factor.remove")] == [
        {"kind": "passkey", "name": "desk"},
        {"kind": "passkey", "name": "two"},
    ]


def test_an_ip_address_has_no_passkeys_and_says_so(browser: Browser, settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"public_url": "http://127.0.0.1:8700"})
    assert browser.get("/api/v1/second-factors").json()["passkeys_available"] is False
    answer = browser.confirm("passkeys:begin").json()
    assert (answer["code"], "ATHANOR_PUBLIC_URL" in answer["remedy"]) == ("passkeys_unavailable", True)
