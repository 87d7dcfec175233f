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


def test_a_report_names_the_defective_row_and_shows_what_is_learned(stack, page: Page, tmp_path: Path) -> None:
    sound = [
        {"messages": [{"role": "user", "content": f"Add {n} and {n}."}, {"role": "assistant", "content": f"{2 * n}"}]}
        for n in range(40)
    ]
    rows = [*sound, {"messages": [{"role": "user", "content": "Is there an answer?"}]}]
    chats = tmp_path / "defective.jsonl"
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    added = stack.athanor("dataset", "add", "defective", str(chats), "--format", "chat")
    assert added.returncode == 0, added.stderr
    sign_in(page, stack, "/datasets")
    page.get_by_role("link", name="defective", exact=True).click()
    expect(page.get_by_text("No report", exact=True)).to_be_visible()
    page.get_by_label("Sequence length in tokens").fill("64")
    page.get_by_role("button", name="Make report").click()
    findings = page.get_by_role("table", name="Findings")
    expect(findings).to_contain_text(f":{len(rows)}", timeout=120_000)
    expect(page.get_by_role("heading", name="Lengths, against sequences of 64 tokens")).to_be_visible()
    expect(page.get_by_role("heading", name="As the model sees it")).to_be_visible()
    dataset = next(one for one in stack.get("/datasets")["items"] if one["name"] == "defective")
    (source,) = stack.get(f"/datasets/{dataset['id']}/report")["report"]["sources"]
    trained = source["splits"]["train"]["documents"]
    documents = sum(split["documents"] for split in source["splits"].values())
    expect(page.get_by_text(f"{trained} of {documents}", exact=True)).to_be_visible()
    assert documents == len(sound)
