"""A new person joins by a link, changes their password, and signs out of another browser."""

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import BROWSER_MARKS

pytestmark = BROWSER_MARKS
OLD, NEW = "correct horse battery", "another horse battery"


@pytest.mark.slow
def test_a_password_is_changed_and_another_browser_signed_out(page: Page, browser: Browser, stack) -> None:
    team = stack.get("/teams")["items"][0]["id"]
    invitation = httpx.post(
        f"{stack.url}/api/v1/teams/{team}/invitations",
        json={"role": "viewer"},
        headers={"Authorization": f"Bearer {stack.token}"},
    ).json()
    page.goto(invitation["url"].replace(stack.url, ""))
    page.get_by_label("Username").fill("pat")
    page.get_by_label("Password", exact=True).fill(OLD)
    page.get_by_role("button", name="Join the team").click()
    expect(page.get_by_role("button", name="Account of pat")).to_be_visible()

    other = browser.new_context(base_url=stack.url).new_page()
    other.goto("/sign-in")
    other.get_by_label("Username").fill("pat")
    other.get_by_label("Password", exact=True).fill(OLD)
    other.get_by_role("button", name="Sign in").click()
    expect(other.get_by_role("button", name="Account of pat")).to_be_visible()

    page.get_by_role("button", name="Account of pat").click()
    page.get_by_role("menuitem", name="Password and sessions").click()
    sessions = page.get_by_role("table", name="Sessions")
    expect(sessions.get_by_role("row")).to_have_count(3)  # with the heading
    expect(sessions.get_by_text("This session")).to_have_count(1)

    page.get_by_label("Current password").fill("wrong")
    page.get_by_label("New password").fill(NEW)
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_text("the current password is not correct")).to_be_visible()
    page.get_by_label("Current password").fill(OLD)
    page.get_by_role("button", name="Change password").click()
    expect(page.get_by_text("Password changed")).to_be_visible()
    expect(sessions.get_by_role("row")).to_have_count(2)

    other.goto("/jobs")
    expect(other.get_by_role("button", name="Sign in")).to_be_visible()
    other.get_by_label("Username").fill("pat")
    other.get_by_label("Password", exact=True).fill(NEW)
    other.get_by_role("button", name="Sign in").click()
    expect(other.get_by_role("button", name="Account of pat")).to_be_visible()
    page.reload()
    page.get_by_role("button", name="Sign out everywhere else").click()
    expect(sessions.get_by_role("row")).to_have_count(2)
    other.context.close()
