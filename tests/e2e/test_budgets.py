"""Budgets in a real Chromium: an administrator makes one, looks at it, lowers it, and the run stops at a checkpoint."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.test_clusters import call, is_clean
from tests.providers import Provider

pytestmark = BROWSER_MARKS


@pytest.fixture
def none_left_behind(page: Page, stack) -> Iterator[None]:
    """Other tests' jobs are not to wait for a budget of these."""
    yield
    page.goto("/budgets")
    for budget in call(page, "GET", "budgets")["items"]:
        call(page, "PATCH", f"budgets/{budget['id']}", {"active": False})


@pytest.mark.slow
def test_a_budget_is_made_lowered_and_stops_a_run(page: Page, stack, tmp_path: Path, none_left_behind: None) -> None:
    sign_in(page, stack, "/budgets")
    page.get_by_role("button", name="New budget").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("spring")
    dialog.get_by_label("Slot-hours").last.fill("500")
    dialog.get_by_label("Hard").check()
    dialog.get_by_role("button", name="Create budget").click()
    link = page.get_by_role("link", name="spring")
    expect(link).to_be_visible()
    is_clean(page)
    job_id = stack.submit(tmp_path, processes=1, steps=20_000)
    try:
        stack.wait_for_step(job_id, 2)
        link.click()
        expect(page.get_by_role("heading", name="spring", level=1)).to_be_visible()
        line = page.get_by_role("table", name="Statement").locator(f"a[href*='{job_id}']")
        expect(line).to_be_visible(timeout=40_000)
        expect(page.get_by_role("img", name=re.compile("^Spent, slot-hours"))).to_be_visible()
        is_clean(page)
        with page.expect_download() as download:
            page.get_by_role("link", name="Export ledger as CSV").click()
        lines = Path(download.value.path()).read_text().splitlines()
        assert lines[0].startswith("time,kind,debit,credit,amount")
        assert any(",reserve,allowance,reserved," in line and job_id in line for line in lines)
        page.get_by_role("button", name="Change").click()
        page.get_by_role("dialog").get_by_label("Slot-hours").fill("0")
        page.get_by_role("dialog").get_by_role("button", name="Save").click()
        expect(page.get_by_text("used up").first).to_be_visible()
        page.goto(f"/jobs/{job_id}")
        expect(page.get_by_text("Budget 'spring' carries it only until").first).to_be_visible(timeout=60_000)
        expect(page.locator("[data-status=queued]").first).to_be_visible(timeout=60_000)
        assert stack.job(job_id)["reason"]["code"] == "budget_exhausted"
    finally:
        stack.athanor("cancel", job_id)
        stack.wait_for_end(job_id)


def test_prices_are_said_by_hour_and_costs_are_told(page: Page, stack) -> None:
    sign_in(page, stack, "/prices")
    row = page.get_by_role("row").filter(has_text="cpu").first
    row.get_by_role("button", name="Change prices of").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Price per slot-hour").fill("0.5")
    dialog.get_by_role("button", name="Add a rule").click()
    dialog.get_by_role("group", name="Rule 1").get_by_label("Price per slot-hour").fill("0.25")
    is_clean(page)
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_text("Mon–Fri 8–20 h UTC: 0.25").first).to_be_visible()
    is_clean(page)
    row.get_by_role("button", name="Time series of").click()
    of_price = dialog.get_by_role("form", name=re.compile("^Price per slot"))
    is_clean(page)
    of_price.locator("input[type=file]").set_input_files(
        {"name": "prices.csv", "mimeType": "text/csv", "buffer": f"{datetime.now(UTC).isoformat()},0.125\n".encode()}
    )
    expect(of_price.get_by_text("1 point is stored.")).to_be_visible()
    of_carbon = dialog.get_by_role("form", name=re.compile("^Carbon of the grid"))
    answer = {"data": [{"at": datetime.now(UTC).isoformat(), "grams": 211}]}
    with Provider(json.dumps(answer).encode()) as provider:
        of_carbon.get_by_label("Provider URL").fill(provider.url)
        of_carbon.get_by_role("button", name="Save").click()
        expect(of_carbon.get_by_role("alert")).to_contain_text("A list of objects")
        of_carbon.get_by_label("Path of the list").fill("data")
        of_carbon.get_by_label("Time field").fill("at")
        of_carbon.get_by_label("Value field").fill("grams")
        of_carbon.get_by_role("button", name="Save").click()
        expect(of_carbon.get_by_text("Fetched at")).to_be_visible()
    is_clean(page)
    page.keyboard.press("Escape")
    expect(row.get_by_text("its series comes first")).to_be_visible()
    expect(row.get_by_text("0.125 ")).to_be_visible()
    expect(row.get_by_text("211 g/kWh")).to_be_visible()
    for series in call(page, "GET", "series")["items"]:
        call(page, "DELETE", f"series/{series['id']}")
    for pool in call(page, "GET", "prices")["items"]:
        call(page, "PATCH", f"prices/{pool['pool_id']}", {"price_per_slot_hour": "0", "rules": []})
    page.goto("/costs")
    expect(page.get_by_role("heading", name="Costs", level=1)).to_be_visible()
    page.get_by_label("By", exact=True).select_option("project,person")
    expect(page.get_by_role("table", name="Costs").or_(page.get_by_text("No usage"))).to_be_visible()
    is_clean(page)
