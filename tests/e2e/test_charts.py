"""The charts of a job in a real Chromium: added series, tokens as the axis, a log scale, links and downloads."""

import csv
import io
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.test_dashboard import DRAWN

pytestmark = BROWSER_MARKS

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def job(stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    submitted = stack.submit(tmp_path_factory.mktemp("job"), steps=30)
    assert stack.wait_for_end(submitted)["status"] == "succeeded"
    return submitted


def test_a_series_is_added_the_axis_changed_and_the_link_shows_the_same(page: Page, stack, job: str) -> None:
    sign_in(page, stack, f"/jobs/{job}")
    page.get_by_role("combobox", name="Add a chart of another series").click()
    page.get_by_role("option", name="train/skipped_steps", exact=True).click()
    added = page.get_by_role("region", name="train/skipped_steps")
    expect(added.locator("canvas")).to_be_visible()
    page.get_by_text("Tokens", exact=True).click()
    page.get_by_role("switch", name="Log scale").click()
    page.get_by_role("slider", name="Smoothing").press("End")
    page.wait_for_url(lambda url: all(part in url for part in ("axis=tokens", "scale=log", "smooth=0.99", "chart=")))

    loss = page.get_by_role("region", name="Loss", exact=True)
    # Each change of the look draws the charts again: wait for the last one.
    expect(page.get_by_role("slider", name="Smoothing")).to_have_attribute("aria-valuenow", "0.99")
    expect(page.get_by_role("switch", name="Log scale")).to_be_checked()
    expect(loss.locator("canvas")).to_be_visible()
    box = loss.locator("canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=8)
    page.mouse.up()
    page.wait_for_url(lambda url: "zoom=" in url)
    address = page.url

    page.goto("/")
    page.goto(address)
    expect(page.get_by_role("region", name="train/skipped_steps")).to_be_visible()
    expect(page.get_by_role("switch", name="Log scale")).to_be_checked()
    canvas = page.get_by_role("region", name="Loss", exact=True).locator("canvas")
    expect(canvas).to_be_visible()
    assert canvas.evaluate(DRAWN)
    assert page.url == address
    page.get_by_role("button", name="Remove the chart of train/skipped_steps").click()
    expect(page.get_by_role("region", name="train/skipped_steps")).to_have_count(0)


def test_a_chart_is_saved_as_a_picture_and_as_points(page: Page, stack, job: str) -> None:
    sign_in(page, stack, f"/jobs/{job}?axis=tokens")
    expect(page.get_by_role("region", name="Loss", exact=True).locator("canvas")).to_be_visible()

    def saved(kind: str) -> tuple[str, bytes]:
        page.get_by_role("button", name="Download Loss").click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=kind).click()
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    name, picture = saved("Picture (PNG)")
    assert name == "loss.png"
    assert picture.startswith(PNG)
    assert len(picture) > 5000

    name, points = saved("Points drawn (CSV)")
    assert name == "loss.csv"
    head, *rows = csv.reader(io.StringIO(points.decode()))
    assert head == ["tokens", "training loss", "validation loss"]
    answer = stack.get(f"/jobs/{job}/metrics", names="train/loss")
    per_step = answer["tokens"]["tokens"][-1] / answer["tokens"]["steps"][-1]
    training = answer["series"]["train/loss"]
    drawn = {float(row[0]): float(row[1]) for row in rows if row[1]}
    assert drawn == pytest.approx(
        {step * per_step: value for step, value in zip(training["steps"], training["values"], strict=True)}
    )
