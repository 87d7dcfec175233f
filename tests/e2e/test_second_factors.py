"""Setting up second factors in a browser and signing in with them, on a stack whose address has passkeys."""

import re
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.control_plane.accounts.authenticators import totp
from tests.e2e.browsing import BROWSER_MARKS
from tests.e2e.conftest import Stack

pytestmark = [*BROWSER_MARKS, pytest.mark.slow]
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Browsers have passkeys for localhost, and none for 127.0.0.1. Everyone with a password needs a second factor."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    settings = {
        "ATHANOR_PORT": port,
        "ATHANOR_PUBLIC_URL": f"http://localhost:{port}",
        "ATHANOR_REQUIRE_SECOND_FACTOR": "everyone",
    }
    running = Stack(tmp_path_factory.mktemp("factors") / "data", settings)
    running.up()
    yield running
    running.down()


@pytest.fixture
def join(page: Page, stack: Stack) -> Callable[[str], None]:
    """Make a new user by an invitation, signed in, on the account page."""

    def make(name: str) -> None:
        team = stack.get("/teams")["items"][0]["id"]
        invitation = httpx.post(
            f"{stack.url}/api/v1/teams/{team}/invitations",
            json={"role": "viewer"},
            headers={"Authorization": f"Bearer {stack.token}"},
        ).json()
        page.goto(invitation["url"])
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password", exact=True).fill(PASSWORD)
        page.get_by_role("button", name="Join the team").click()
        expect(page.get_by_role("button", name=f"Account of {name}")).to_be_visible()
        page.goto("/account")

    return make


def enter_password(page: Page, name: str) -> None:
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("Confirm that it is you.")).to_be_visible()


def sign_out(page: Page, name: str) -> None:
    page.get_by_role("button", name=f"Account of {name}").click()
    page.get_by_role("menuitem", name="Sign out").click()
    expect(page.get_by_label("Username")).to_be_visible()


def test_an_authenticator_app_is_set_up_and_used(page: Page, browser: Browser, stack: Stack, join: Callable) -> None:
    join("pat")
    demanded = page.get_by_text("Set up a second factor to continue")
    page.goto("/jobs")
    expect(page).to_have_url(re.compile("/account$"))
    expect(demanded).to_be_visible()
    app = page.get_by_role("region", name="Authenticator app")
    app.get_by_role("button", name="Set up").click()
    dialog = page.get_by_role("dialog", name="Set up authenticator app")
    dialog.get_by_label("Your password").fill(PASSWORD)
    dialog.get_by_role("button", name="Continue").click()
    picture = dialog.get_by_role("img", name="QR code for the authenticator app")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.complete && image.naturalWidth > 0"), "the content policy lets it be drawn"
    secret = dialog.get_by_label("Key", exact=True).input_value()
    dialog.get_by_label("Code from the app").fill("12345")
    dialog.get_by_role("button", name="Turn on").click()
    expect(dialog.get_by_text("wrong_second_factor")).to_be_visible()
    dialog.get_by_label("Code from the app").fill(totp(secret, time.time() - 30))
    dialog.get_by_role("button", name="Turn on").click()
    listed = dialog.get_by_role("list", name="Recovery codes").get_by_role("listitem")
    expect(listed).to_have_count(10)
    codes = listed.all_inner_texts()
    with page.expect_download() as download:
        dialog.get_by_role("button", name="Download").click()
    assert download.value.path().read_text().split() == codes
    dialog.get_by_role("button", name="Done").click()
    expect(dialog).to_have_count(0)
    expect(app.get_by_text("On", exact=True)).to_be_visible()
    expect(demanded).to_have_count(0)
    page.goto("/jobs")
    expect(page.get_by_role("heading", level=1, name="Jobs")).to_be_visible()
    page.goto("/account")
    expect(page.get_by_text("10 codes left")).to_be_visible()

    sign_out(page, "pat")
    enter_password(page, "pat")
    expect(page.get_by_label("Code")).to_be_focused()
    page.reload()  # the pending step is the server's
    page.get_by_label("Code").fill(totp(secret, time.time()))
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Account of pat")).to_be_visible()

    sign_out(page, "pat")
    page.goto("/sign-in?next=/account")
    enter_password(page, "pat")
    page.get_by_label("Code").fill("wrong")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("wrong_second_factor")).to_be_visible()
    page.get_by_label("Code").fill(codes[0])
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("9 codes left")).to_be_visible()

    app.get_by_role("button", name="Remove app").click()
    dialog = page.get_by_role("dialog", name="Remove authenticator app")
    dialog.get_by_label("Your password").fill(PASSWORD)
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(app.get_by_role("button", name="Set up")).to_be_visible()
    expect(page.get_by_role("region", name="Recovery codes")).to_have_count(0)


def test_the_second_step_can_be_left_for_another_account(page: Page, stack: Stack, join: Callable) -> None:
    join("kim")
    page.get_by_role("region", name="Authenticator app").get_by_role("button", name="Set up").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Your password").fill(PASSWORD)
    dialog.get_by_role("button", name="Continue").click()
    secret = dialog.get_by_label("Key", exact=True).input_value()
    dialog.get_by_label("Code from the app").fill(totp(secret, time.time()))
    dialog.get_by_role("button", name="Turn on").click()
    dialog.get_by_role("button", name="Done").click()
    sign_out(page, "kim")
    enter_password(page, "kim")
    page.context.clear_cookies(name="sessionid")  # as when the pending step has expired
    page.get_by_label("Code").fill("123456")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("sign_in_expired")).to_be_visible()
    enter_password(page, "kim")
    page.get_by_role("button", name="Use another account").click()
    page.get_by_label("Username").fill(stack.username)
    page.get_by_label("Password", exact=True).fill(stack.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name=f"Account of {stack.username}")).to_be_visible()


def test_the_admin_sends_who_has_a_factor_to_the_dashboard_and_back(page: Page, stack: Stack) -> None:
    page.goto("/sign-in?next=/account")
    page.get_by_label("Username").fill(stack.username)
    page.get_by_label("Password", exact=True).fill(stack.password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("region", name="Authenticator app").get_by_role("button", name="Set up").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Your password").fill(stack.password)
    dialog.get_by_role("button", name="Continue").click()
    secret = dialog.get_by_label("Key", exact=True).input_value()
    dialog.get_by_label("Code from the app").fill(totp(secret, time.time() - 30))
    dialog.get_by_role("button", name="Turn on").click()
    dialog.get_by_role("button", name="Done").click()
    sign_out(page, stack.username)
    page.goto("/admin/")
    page.get_by_label("Username").fill(stack.username)
    page.get_by_label("Password").fill(stack.password)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="the dashboard's sign-in page").click()
    page.get_by_label("Username").fill(stack.username)
    page.get_by_label("Password", exact=True).fill(stack.password)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_label("Code").fill(totp(secret, time.time()))
    page.get_by_role("button", name="Continue").click()
    expect(page).to_have_url(re.compile("/admin/$"))
    expect(page.locator("#site-name")).to_be_visible()


def test_a_passkey_is_added_used_renamed_and_removed(page: Page, stack: Stack, join: Callable) -> None:
    join("sam")
    devtools = page.context.new_cdp_session(page)
    devtools.send("WebAuthn.enable")
    facts = {"protocol": "ctap2", "transport": "usb", "hasResidentKey": True, "hasUserVerification": True}
    devtools.send(
        "WebAuthn.addVirtualAuthenticator",
        {"options": {**facts, "isUserVerified": True, "automaticPresenceSimulation": True}},
    )
    page.get_by_role("button", name="Add passkey").click()
    dialog = page.get_by_role("dialog", name="Add passkey")
    dialog.get_by_label("Name").fill("security key")
    dialog.get_by_label("Your password").fill(PASSWORD)
    dialog.get_by_role("button", name="Continue").click()
    expect(dialog.get_by_role("list", name="Recovery codes").get_by_role("listitem")).to_have_count(10)
    dialog.get_by_role("button", name="Done").click()
    table = page.get_by_role("table", name="Passkeys")
    expect(table.get_by_role("cell", name="security key", exact=True)).to_be_visible()

    for _ in range(2):  # the counter of the key grows
        sign_out(page, "sam")
        page.goto("/sign-in?next=/account")
        enter_password(page, "sam")
        page.get_by_role("button", name="Use a passkey").click()
        expect(page.get_by_role("button", name="Account of sam")).to_be_visible()

    table.get_by_role("button", name="Rename security key").click()
    dialog = page.get_by_role("dialog", name="Rename passkey")
    dialog.get_by_label("Name").fill("desk")
    dialog.get_by_role("button", name="Rename").click()
    expect(table.get_by_role("cell", name="desk", exact=True)).to_be_visible()
    table.get_by_role("button", name="Remove desk").click()
    dialog = page.get_by_role("dialog", name="Remove passkey")
    dialog.get_by_label("Your password").fill(PASSWORD)
    dialog.get_by_role("button", name="Remove passkey").click()
    expect(table).to_have_count(0)
    sign_out(page, "sam")
    page.get_by_label("Username").fill("sam")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name="Account of sam")).to_be_visible()
