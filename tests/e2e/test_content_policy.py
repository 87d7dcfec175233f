"""Every page works under the content security policy: no inline script or style, nothing from elsewhere."""

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

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


def test_the_documentation_obeys_the_policy_and_can_be_searched(page: Page, stack) -> None:
    page.goto("/docs/runbooks/reasons/network#network_error")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate("typeof __md_get") == "function", "the inline script of the theme ran"
    page.get_by_role("textbox", name="Search").fill("storage quota")
    found = page.locator(".md-search-result__item a").first
    expect(found).to_be_visible()
    found.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.wait_for_load_state("networkidle")
    assert page.url.startswith(f"{stack.url}/docs/")


def test_the_policy_of_every_page_has_no_exception(stack) -> None:
    """Whatever kind of page answers: the dashboard, an unknown one, the documentation, the API's page, the admin."""
    paths = (
        "/sign-in",
        "/no/such/page",
        "/docs/",
        "/docs/runbooks/reasons/hang",
        "/docs/none",
        "/api/docs/",
        "/admin/login/",
        "/api/v1",
    )
    for path in paths:
        policy = httpx.get(f"{stack.url}{path}").headers["content-security-policy"]
        directives = dict(part.split(" ", 1) for part in policy.split("; "))
        assert directives["default-src"] == "'none'", path
        scripts = re.sub(r" 'sha256-[\w+/=]{44}'", "", directives.get("script-src", "'none'"))
        assert scripts in ("'self'", "'none'"), path
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
