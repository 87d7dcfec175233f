"""Models in a real Chromium: registered, described, with their lineage and the replays of the job that trained them."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import BROWSER_MARKS, sign_in

pytestmark = BROWSER_MARKS


@pytest.fixture(scope="module")
def finished_job(stack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of a job on an uploaded data set."""
    folder = tmp_path_factory.mktemp("model")
    text: Path = folder / "sums.txt"
    text.write_text("".join(f"{n} plus {n} is {2 * n}.\n" for n in range(2000)))
    added = stack.athanor("dataset", "add", "sums", str(text))
    assert added.returncode == 0, added.stderr
    job_id = str(stack.submit(folder, steps=3, data={"source": "dataset:sums"}))
    assert stack.wait_for_end(job_id)["status"] == "succeeded"
    return job_id


def test_an_export_is_registered_described_and_named_by_an_alias(page: Page, stack, finished_job: str) -> None:
    sign_in(page, stack, f"/jobs/{finished_job}")
    page.get_by_role("tab", name="Outputs").click()
    artifacts = page.get_by_role("table", name="Artifacts")
    artifacts.get_by_role("button", name=re.compile("^Register")).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="Model").fill("support-bot")
    dialog.get_by_role("textbox", name="Alias").fill("candidate")
    dialog.get_by_role("button", name="Register").click()
    page.wait_for_url("**/models/mdl_*")
    versions = page.get_by_role("table", name="Versions")
    expect(versions.get_by_role("row")).to_have_count(2)
    expect(versions).to_contain_text("candidate")

    page.get_by_role("button", name="Move an alias of support-bot to version 1").click()
    page.get_by_role("textbox", name="Alias").fill("production")
    page.get_by_role("button", name="Move", exact=True).click()
    expect(versions).to_contain_text("production")
    aliases = {row["name"]: row["version"] for row in stack.get("/models")["items"][0]["aliases"]}
    assert aliases == {"candidate": 1, "production": 1}

    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Model card, in Markdown").fill("# For support\n\n<b>not HTML</b> and **strong**")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="For support")).to_be_visible()
    expect(page.get_by_text("<b>not HTML</b> and strong")).to_be_visible()
    versions.get_by_role("link", name="tiny").click()
    page.wait_for_url(f"**/jobs/{finished_job}")


def test_a_version_is_promoted_only_if_its_results_meet_the_requirements(
    page: Page, stack, finished_job: str, tmp_path: Path
) -> None:
    stack.json("model", "register", "judged-bot", finished_job, "--alias", "candidate")
    facts = tmp_path / "facts.jsonl"
    facts.write_text(
        "".join(
            json.dumps({"question": f"{n} plus {n} is", "choices": [str(2 * n), "?"], "answer": 0}) + "\n"
            for n in range(20)
        )
    )
    assert stack.athanor("dataset", "add", "facts", str(facts), "--no-prepare").returncode == 0
    spec = {
        "version": 1, "name": "evaluate", "resources": {"processes_per_node": 1, "accelerator": "cpu"},
        "evaluation": {
            "model": "model:judged-bot@candidate", "sequence_length": 64,
            "tasks": [{"name": "facts", "kind": "multiple_choice", "source": "dataset:facts"}],
        },
    }  # fmt: skip
    (tmp_path / "evaluate.json").write_text(json.dumps(spec))
    evaluated = str(stack.json("submit", str(tmp_path / "evaluate.json"))["id"])
    assert stack.wait_for_end(evaluated)["status"] == "succeeded"

    sign_in(page, stack, "/models")
    page.get_by_role("link", name="judged-bot").click()
    versions = page.get_by_role("table", name="Versions")
    page.get_by_role("button", name="Promote version 1 of judged-bot").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="To the alias").fill("stable")
    dialog.get_by_role("textbox", name="Requirements").fill("facts.accuracy>1\n")
    dialog.get_by_role("button", name="Promote", exact=True).click()
    expect(dialog).to_contain_text("does not meet facts.accuracy>1")
    expect(dialog).to_contain_text("requirement_not_met")
    aliases = {row["name"] for row in stack.get("/models", name="judged-bot")["items"][0]["aliases"]}
    assert "stable" not in aliases

    dialog.get_by_role("textbox", name="Requirements").fill("facts.accuracy>=0\naccuracy_normalised<=1")
    dialog.get_by_role("button", name="Promote", exact=True).click()
    expect(dialog).to_be_hidden()
    expect(versions).to_contain_text("stable")


def test_the_lineage_of_a_version_leads_to_its_job_and_its_data(page: Page, stack, finished_job: str) -> None:
    registered = stack.json("model", "register", "traced-bot", finished_job)
    sign_in(page, stack, "/models")
    page.get_by_role("link", name="traced-bot").click()
    made_of = page.get_by_role("region", name="Made of")
    expect(made_of.get_by_role("link", name="tiny", exact=True)).to_be_visible()
    nodes = stack.get("/lineage", of=registered["artifact"], direction="up")["nodes"]
    (data,) = [node for node in nodes if node["kind"] == "dataset"]
    expect(made_of).to_contain_text(data["digest"][:12])
    expect(page.get_by_role("region", name="Used for")).to_contain_text("traced-bot")
    made_of.get_by_role("link", name="sums").first.click()  # read by the job, and the text of its tokens
    page.wait_for_url(f"**/datasets/{data['id']}")


def test_a_replay_is_shown_with_the_job_that_it_verified(page: Page, stack, finished_job: str) -> None:
    replayed = stack.athanor("verify", "--replay", "1", "--from-start", finished_job, "--wait")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    (result,) = stack.get(f"/jobs/{finished_job}/replays")["items"]
    sign_in(page, stack, f"/jobs/{finished_job}")
    page.get_by_role("tab", name="Outputs").click()
    row = page.get_by_role("table", name="Replays").get_by_role("row").nth(1)
    expect(row).to_contain_text("Equal")
    expect(row).to_contain_text("1 to 3")
    row.get_by_role("link", name=re.compile("^replay-")).click()
    page.wait_for_url(f"**/jobs/{result['replay']['id']}")
