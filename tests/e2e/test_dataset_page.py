"""Conversations in a real Chromium: uploaded with the dialog's defaults, shown on their page, and trained on."""

import json
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in

pytestmark = BROWSER_MARKS


def test_conversations_are_uploaded_with_the_defaults_and_trained_on(stack, page: Page, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    exchanges = [(f"What is {n} plus {n}?", f"{n} plus {n} is {2 * n}.") for n in range(300)]
    chats.write_text(
        "".join(
            json.dumps({"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]}) + "\n"
            for a, b in exchanges
        )
    )
    sign_in(page, stack, "/datasets")
    page.get_by_role("button", name="Upload").click()
    page.locator("input[type=file]").set_input_files(chats)
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Found: Conversations")).to_be_visible()
    expect(dialog.get_by_text(exchanges[0][0])).to_be_visible()
    dialog.get_by_role("button", name="Upload").click()
    page.get_by_role("link", name="chats", exact=True).click()
    expect(page.get_by_text(exchanges[0][1])).to_be_visible()
    job_id = stack.submit(tmp_path, steps=5, data={"source": "dataset:chats"})
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["reason"]
    page.reload()
    expect(page.get_by_role("table", name="Jobs that read it").get_by_role("link", name="tiny")).to_be_visible()
    expect(page.get_by_role("table", name="Tokenised forms").get_by_text("300")).to_be_visible()
