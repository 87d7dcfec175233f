"""The jobs table in a real Chromium: sorted by a figure, with a field of the spec as a column, filtered by label."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in

pytestmark = BROWSER_MARKS

RATES = {"low": 0.0001, "middle": 0.001, "high": 0.01}


@pytest.fixture(scope="module")
def losses(stack, tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The training loss of each job, by its name."""
    folder = tmp_path_factory.mktemp("specs")
    ids = {name: submit(stack, folder, name, rate) for name, rate in RATES.items()}
    ended = {name: stack.wait_for_end(job_id) for name, job_id in ids.items()}
    assert {job["status"] for job in ended.values()} == {"succeeded"}
    return {name: job["progress"]["loss"] for name, job in ended.items()}


def submit(stack, folder: Path, name: str, rate: float) -> str:
    changes = (
        f"name={name}", f"training.optimizer.learning_rate={rate:.5f}", f"labels.rate={name}", "labels.table=sorted",
    )  # fmt: skip
    given = [part for change in changes for part in ("--set", change)]
    return str(stack.json("submit", str(stack.spec(folder, steps=12)), *given)["id"])


def names(page: Page) -> list[str]:
    return page.locator("a[data-row]").all_inner_texts()


def test_jobs_are_sorted_by_loss_with_a_field_of_their_specs_beside_it(
    page: Page, stack, losses: dict[str, float]
) -> None:
    sign_in(page, stack, "/jobs?label.table=sorted")
    expect(page.locator("a[data-row]")).to_have_count(3)
    heading = page.get_by_role("columnheader", name="Training loss")
    for direction, state in (("ascending", False), ("descending", True)):
        heading.get_by_role("button").click()
        expect(heading).to_have_attribute("aria-sort", direction)
        wanted = sorted(losses, key=losses.__getitem__, reverse=state)
        expect(page.locator("a[data-row]")).to_have_text(wanted)
    page.get_by_role("button", name="Columns").click()
    columns = page.get_by_role("combobox", name="Columns")
    columns.click()
    columns.fill("optimizer.learning_rate")
    page.get_by_role("option", name="training.optimizer.learning_rate", exact=True).click()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    for name, rate in RATES.items():
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
        expect(row.get_by_role("cell", name=str(rate), exact=True)).to_be_visible()
    address = page.url
    page.goto("/")
    page.goto(address)
    expect(page.get_by_role("columnheader", name="training.optimizer.learning_rate")).to_be_visible()
    expect(page.locator("a[data-row]")).to_have_text(sorted(losses, key=losses.__getitem__, reverse=True))


def test_filters_by_label_and_person_find_what_the_command_line_finds(
    page: Page, stack, losses: dict[str, float]
) -> None:
    sign_in(page, stack, "/jobs")
    page.get_by_role("button", name="Filters").click()
    page.get_by_role("combobox", name="Labels").fill("rate=middle")
    page.keyboard.press("Enter")
    expect(page.locator("a[data-row]")).to_have_text(["middle"])
    page.get_by_role("combobox", name="Submitted by").select_option("Me")
    expect(page.get_by_role("button", name="Filters (2)")).to_be_visible()
    expect(page.locator("a[data-row]")).to_have_text(["middle"])
    listed = stack.json("list", "--mine", "--label", "rate=middle", "--sort", "-loss")
    assert [job["name"] for job in listed["items"]] == ["middle"]
