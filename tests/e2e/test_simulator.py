"""The simulator in a real Chromium: slots are proposed, made-up jobs are tried, and both outcomes are compared."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.test_clusters import call, is_clean

pytestmark = BROWSER_MARKS
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
WITHIN_MS = 90_000


def looked_at(page: Page, name: str) -> None:
    """What was asked for last, light, dark and narrow: nothing scrolls sideways, and axe finds nothing."""
    folder = os.environ.get("ATHANOR_SCREENSHOTS")
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 860})
        page.reload()
        page.get_by_role("button", name=re.compile("^Show the simulation")).first.click()
        expect(page.get_by_role("table", name="Results by team")).to_be_visible()
        assert page.evaluate("document.documentElement.dataset.mantineColorScheme") == scheme
        assert page.evaluate(OVERFLOW) <= 0, (name, width)
        if folder:
            page.screenshot(path=str(Path(folder) / f"{name}-{scheme}-{width}.png"), full_page=True)
        is_clean(page)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 860})


@pytest.fixture
def governed(page: Page, stack) -> Iterator[None]:
    """A tree with a grant of CPU slots, so large that it holds up no other test."""
    sign_in(page, stack, "/quotas")
    before = call(page, "GET", "quotas/document")
    call(page, "PATCH", "quotas", {"changes": [{"node": "organisation", "grants": {"cpu": {"nominal": 10_000}}}]})
    yield
    call(page, "PUT", "quotas", before)


@pytest.mark.slow
def test_a_proposal_is_tried_on_made_up_jobs(page: Page, stack, governed: None) -> None:
    page.goto("/simulator")
    expect(page.get_by_role("heading", level=1)).to_have_text("Simulator")
    page.get_by_role("radiogroup", name="Jobs to simulate").get_by_text("Generated jobs").click()
    page.get_by_role("textbox", name="Days", exact=True).fill("3")
    page.get_by_role("textbox", name="Jobs a day").fill("200")
    page.get_by_role("textbox", name="Slots of the largest job").fill("4")
    page.get_by_role("textbox", name="Own slots: cpu of organisation").fill("2")
    page.get_by_role("textbox", name=f"Borrow limit: cpu of {stack.team}").fill("2")
    page.get_by_role("switch", name="Backfill").uncheck()
    page.get_by_role("button", name="Run").click()
    results = page.get_by_role("table", name="Results by team")
    expect(results).to_be_visible(timeout=WITHIN_MS)
    expect(results.get_by_role("row", name=re.compile("^All"))).to_contain_text("600")
    expect(page.get_by_role("region", name="Result")).to_contain_text("Proposed")
    expect(page.get_by_role("region", name="Mean wait")).to_contain_text("as proposed")
    earlier = page.get_by_role("table", name="Simulations")
    expect(earlier.get_by_role("row").nth(1)).to_contain_text("done", timeout=WITHIN_MS)
    looked_at(page, "simulator")
    assert call(page, "GET", "quotas/settings")["backfill"] is True, "nothing of it holds"


def test_a_wrong_proposal_is_named_at_its_place(page: Page, stack, governed: None) -> None:
    page.goto("/simulator")
    page.get_by_role("textbox", name="Days of history").fill("")
    page.get_by_role("textbox", name="Borrow limit: cpu of organisation").fill("3")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_be_visible()
