"""Every page works under the content security policy: no inline script or style, nothing from elsewhere."""

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from athanor.api.docs_pages import PARTS, pages
from athanor.api.site import DASHBOARD_PAGES
from tests.e2e.browsing import BROWSER_MARKS, sign_in

pytestmark = BROWSER_MARKS


def test_every_page_of_the_dashboard_obeys_the_policy(page: Page, stack) -> None:
    sign_in(page, stack)
    for name in (*DASHBOARD_PAGES, "jobs/new", "clusters/new"):
        if name in ("sign-in", "invitation", "reset-password"):
            continue
        page.goto(f"/{name}")
        expect(page.get_by_role("heading", level=1).first).to_be_visible()
        page.wait_for_load_state("networkidle")


def test_dialogs_and_editors_are_styled(page: Page, stack) -> None:
    """What adds style elements at run time: the scroll lock of dialogs, the YAML editor, the charts."""
    sign_in(page, stack, "/tokens")
    page.get_by_role("button", name="New token").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).overflow") == "hidden"
    page.goto("/jobs/new")
    editor = page.locator(".cm-editor").first
    expect(editor).to_be_visible()
    assert editor.evaluate("element => getComputedStyle(element).position") == "relative"


@pytest.mark.parametrize("path", ["/api/docs/", "/admin/login/"])
def test_other_pages_obey_the_policy(page: Page, stack, path: str) -> None:
    page.goto(path)
    page.wait_for_load_state("networkidle")
    shown = page.locator(".opblock-tag").first if "docs" in path else page.get_by_label("Username")
    expect(shown).to_be_visible()


@pytest.mark.parametrize("part", PARTS)
def test_pages_of_the_documentation_obey_the_policy(page: Page, stack, part: str) -> None:
    """Without signing in, as a runbook's link is opened: every page of a folder."""
    for name in sorted(name for name in pages() if name.startswith(f"{part}/") and name.count("/") == 1):
        page.goto(f"/docs/{name}")
        expect(page.get_by_role("heading", level=1).first).to_be_visible()
        assert page.locator("style, script:not([src]), [style]").count() == 0, "nothing inline is needed"


def test_the_policy_of_every_page_has_no_exception(stack) -> None:
    """Whatever kind of page answers: the dashboard, an unknown one, the documentation, the API's page, the admin."""
    paths = (
        "/sign-in",
        "/no/such/page",
        f"/docs/{min(pages())}",
        "/docs/none",
        "/api/docs/",
        "/admin/login/",
        "/api/v1",
    )
    for path in paths:
        policy = httpx.get(f"{stack.url}{path}").headers["content-security-policy"]
        directives = dict(part.split(" ", 1) for part in policy.split("; "))
        assert directives["default-src"] == "'none'", path
        assert directives.get("script-src", "'none'") in ("'self'", "'none'"), path
        styles = re.sub(r" 'nonce-[^']{16,}'", "", directives.get("style-src", "'none'"))
        assert styles in ("'self'", "'none'"), path


def test_the_admin_obeys_the_policy(page: Page, stack) -> None:
    sign_in(page, stack)
    for path in ("/admin/", "/admin/accounts/user/", "/admin/accounts/user/add/"):
        page.goto(path)
        expect(page.locator("#site-name")).to_be_visible()
        page.wait_for_load_state("networkidle")


def test_an_inline_script_does_not_run(page: Page, stack) -> None:
    """The policy is really there: what an attacker could put into a page does nothing."""
    page.goto("/sign-in")
    nonce = page.evaluate("document.querySelector('meta[property=csp-nonce]').nonce")
    assert len(nonce) >= 16
    answer = httpx.get(f"{stack.url}/sign-in")
    assert nonce not in answer.text, "a nonce serves one answer"
    assert "unsafe" not in answer.headers["content-security-policy"]
