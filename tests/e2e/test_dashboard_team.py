"""Teams, their secrets and the audit trail in a real Chromium."""

import re

from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in

pytestmark = BROWSER_MARKS


def test_somebody_is_invited_joins_gets_a_role_and_is_removed(page: Page, browser: Browser, stack) -> None:
    sign_in(page, stack, "/team")
    page.get_by_role("button", name="Invite a member").click()
    page.get_by_label("Note on the link").fill("Lin of the vision group")
    page.get_by_role("button", name="Invite", exact=True).click()
    link = page.get_by_role("dialog").locator("code").inner_text()
    page.get_by_role("button", name="Done").click()
    expect(page.get_by_role("row", name=re.compile("Lin of the vision group"))).to_contain_text("Open")
    assert link not in page.content()

    other = browser.new_context(base_url=stack.url)
    guest = other.new_page()
    guest.goto(link)
    guest.get_by_label("Username").fill("lin")
    guest.get_by_label("Password", exact=True).fill("short")
    guest.get_by_role("button", name="Join the team").click()
    expect(guest.get_by_role("alert")).to_contain_text("password")
    guest.get_by_label("Password", exact=True).fill("a kiln burns slowly")
    guest.get_by_role("button", name="Join the team").click()
    expect(guest.get_by_role("heading", level=1)).to_contain_text("Team")
    expect(guest.get_by_role("row", name=re.compile("lin"))).to_be_visible()
    expect(guest.get_by_role("button", name="Invite a member")).to_have_count(0)

    page.reload()
    with page.expect_response(lambda answer: answer.request.method == "PATCH"):
        page.get_by_label("Role of lin").select_option("viewer")
    guest.reload()
    expect(guest.get_by_text("Your role: viewer.")).to_be_visible()
    page.get_by_role("button", name="Remove lin").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_role("button", name="Remove lin")).to_have_count(0)
    guest.reload()
    expect(guest.get_by_text("You are not in a team yet")).to_be_visible()

    guest.goto(link)
    guest.get_by_role("button", name="Join the team").click()
    expect(guest.get_by_role("alert")).to_contain_text("used, revoked or expired")

    page.get_by_role("button", name="Invite a member").click()
    page.get_by_label("Username").fill("lin")
    page.get_by_role("button", name="Invite", exact=True).click()
    expect(page.get_by_role("table", name="Invitations").get_by_role("row", name=re.compile("^lin"))).to_contain_text(
        "Open"
    )
    guest.goto("/team")
    guest.get_by_role("button", name=re.compile("^Join ")).click()
    guest.get_by_role("button", name="Leave the team").click()
    guest.get_by_role("button", name="Leave", exact=True).click()
    expect(guest.get_by_text("You are not in a team yet")).to_be_visible()
    other.close()

    page.get_by_role("link", name="Team", exact=True).click()
    page.get_by_role("link", name="Audit").click()
    page.get_by_label("Action, such as job.cancel").fill("member.remove")
    expect(page.get_by_role("table", name="Audit").get_by_role("row")).to_have_count(3)


def test_a_secret_is_set_and_never_shown(page: Page, stack) -> None:
    sign_in(page, stack, "/team")
    page.get_by_role("button", name="Set a secret").click()
    page.get_by_label("Name").fill("hf-token")
    page.get_by_label("Value").fill("hf_planted_in_the_browser")
    page.get_by_role("button", name="Set secret").click()
    expect(page.get_by_text("ATHANOR_JOB_SECRET_HF_TOKEN")).to_be_visible()
    page.reload()
    expect(page.get_by_role("button", name="Delete hf-token")).to_be_visible()
    assert "hf_planted_in_the_browser" not in page.content()
    assert "hf_planted_in_the_browser" not in page.request.get("/api/v1/audit").text()
    page.get_by_role("button", name="Delete hf-token").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_role("button", name="Delete hf-token")).to_have_count(0)


def test_a_service_account_gets_a_token_that_works_until_it_is_retired(page: Page, stack) -> None:
    sign_in(page, stack, "/team")
    page.get_by_role("button", name="New service account").click()
    page.get_by_label("Name").fill("nightly")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("table", name="Members").get_by_role("row", name=re.compile("nightly"))).to_be_visible()
    row = page.get_by_role("table", name="Service accounts").get_by_role("row", name=re.compile("nightly"))
    row.get_by_role("button", name=re.compile("New token")).click()
    token = page.get_by_role("dialog").locator("code").inner_text()
    page.get_by_role("button", name="Done").click()
    bearer = {"Authorization": f"Bearer {token}"}
    assert page.request.get("/api/v1/jobs", headers=bearer).status == 200
    row.get_by_role("button", name=re.compile("Retire")).click()
    page.get_by_role("button", name="Retire it").click()
    expect(row).to_have_count(0)
    assert page.request.get("/api/v1/jobs", headers=bearer).status == 401
