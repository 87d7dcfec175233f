"""What the tests of the dashboard share: whether there is a browser, and how one signs in."""

import shutil

import pytest
from playwright.sync_api import Page, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
BROWSER_MARKS = [
    pytest.mark.e2e,
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)"),
]


def sign_in(page: Page, stack, path: str = "/", person=None) -> None:
    """Sign in as `person`, who has a `username` and a `password`; by default as the stack's first user."""
    person = person or stack
    page.goto(path)
    page.get_by_label("Username").fill(person.username)
    page.get_by_label("Password", exact=True).fill(person.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("button", name=f"Account of {person.username}")).to_be_visible()
