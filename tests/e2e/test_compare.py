"""Comparing jobs in a real Chromium: chosen in the table, overlaid, zoomed into."""

import pytest
from playwright.sync_api import Page, Request, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.test_dashboard import DRAWN, OVERFLOW, UNNAMED_CONTROLS

pytestmark = BROWSER_MARKS


@pytest.fixture(scope="module")
def two_jobs(stack, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    jobs = [stack.submit(tmp_path_factory.mktemp("job"), steps=steps) for steps in (12, 20)]
    assert {stack.wait_for_end(job)["status"] for job in jobs} == {"succeeded"}
    return jobs


@pytest.mark.slow
def test_jobs_chosen_in_the_table_are_drawn_over_one_another(page: Page, stack, two_jobs: list[str]) -> None:
    sign_in(page, stack)
    choices = page.get_by_role("checkbox", name="Select")
    expect(choices.nth(1)).to_be_visible()
    choices.nth(0).check()
    expect(page.get_by_role("link", name="Compare 2 jobs")).to_have_count(0)
    choices.nth(1).check()
    asked: list[Request] = []
    page.on("request", lambda request: asked.append(request) if "metrics:query" in request.url else None)
    page.get_by_role("link", name="Compare 2 jobs").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Compare")
    entries = page.get_by_role("list", name="Compared jobs").get_by_role("listitem")
    expect(entries).to_have_count(2)
    loss = page.get_by_role("img", name="Training loss").locator("canvas")
    expect(loss).to_be_visible()
    assert loss.evaluate(DRAWN)
    assert len(asked) == 1, "every curve of both jobs in one request"
    assert page.evaluate(UNNAMED_CONTROLS) == []

    entries.first.get_by_role("checkbox").uncheck()
    expect(page.get_by_text("None of these jobs")).to_have_count(0)
    entries.first.get_by_role("checkbox").check()

    box = loss.bounding_box()
    assert box is not None
    with page.expect_request(lambda r: "metrics:query" in r.url and "from_step" in (r.post_data or "")) as closer:
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 60, steps=8)
        page.mouse.up()
    body = closer.value.post_data_json
    assert 0 < body["from_step"] < body["to_step"] <= 20
    assert loss.evaluate(DRAWN)


def test_the_page_fits_a_phone_and_says_what_to_do_without_jobs(page: Page, stack, two_jobs: list[str]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    sign_in(page, stack, f"/compare?jobs={','.join(two_jobs)}")
    expect(page.get_by_role("img", name="Training loss")).to_be_visible()
    assert page.evaluate(OVERFLOW) <= 0
    page.goto("/compare")
    expect(page.get_by_text("Nothing to compare yet")).to_be_visible()


def test_staff_find_the_administration_in_the_account_menu(page: Page, stack, two_jobs: list[str]) -> None:
    sign_in(page, stack)
    page.get_by_role("button", name=f"Account of {stack.username}").click()
    page.get_by_role("menuitem", name="Administration").click()
    expect(page).to_have_title("Administration | Athanor")
    page.get_by_role("link", name="Jobs", exact=True).last.click()
    page.get_by_role("link", name="open").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("tiny")
