"""Deleting in a real Chromium: what a job stored, a project, and a team up to its certificate of erasure."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import APIResponse, Page, expect

from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.e2e.browsing import BROWSER_MARKS, sign_in

pytestmark = BROWSER_MARKS


def send(page: Page, method: str, path: str, body: Any = None) -> APIResponse:
    """A request of the signed-in browser."""
    token = page.request.get("/api/v1/session").json()["csrf_token"]
    headers = {"X-CSRFToken": token, "Content-Type": "application/json", "Referer": page.url}
    data = None if body is None else json.dumps(body)
    return page.request.fetch(f"/api/v1{path}", method=method, headers=headers, data=data)


def restore(page: Page, name: str) -> None:
    page.get_by_role("button", name=f"Restore {name}").click()
    expect(page.get_by_role("button", name=f"Restore {name}")).to_have_count(0)


@pytest.mark.slow
def test_stored_data_and_a_project_are_deleted_and_restored(page: Page, stack, tmp_path: Path) -> None:
    spec = stack.spec(tmp_path)
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "project": "vision"}))
    job_id = stack.json("submit", str(spec))["id"]
    assert stack.wait_for_end(job_id)["status"] == "succeeded"

    sign_in(page, stack, f"/jobs/{job_id}")
    page.get_by_role("button", name="Delete what tiny stored").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It can be restored for 7 days")
    expect(dialog).to_contain_text("checkpoints")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("what tiny stored is deleted")).to_be_visible()
    assert stack.get(f"/jobs/{job_id}/artifacts")["items"] == []
    page.goto("/datasets")
    restore(page, "tiny")
    assert stack.get(f"/jobs/{job_id}/artifacts")["items"]

    page.goto("/team")
    expect(page.get_by_role("button", name="Delete default")).to_have_count(0)
    page.get_by_role("button", name="Delete vision").click()
    expect(dialog).to_contain_text("1 jobs")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    table = page.get_by_role("table", name="Projects")
    expect(table.get_by_role("row", name=re.compile("^vision"))).to_have_count(0)
    assert stack.job(job_id)["project"].startswith("vision.deleted-del_")
    restore(page, "vision")
    expect(table.get_by_role("row", name=re.compile("^vision"))).to_be_visible()
    assert stack.job(job_id)["project"] == "vision"


def test_a_team_is_deleted_restored_and_erased_with_a_certificate(page: Page, stack, tmp_path: Path) -> None:
    sign_in(page, stack, "/team")
    assert send(page, "POST", "/teams", {"name": "short-lived"}).status == 201
    page.goto("/team?team=short-lived")
    expect(page.get_by_role("heading", level=1)).to_have_text("Team short-lived")

    page.get_by_role("button", name="Delete team short-lived").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 members")
    expect(dialog).to_contain_text("its keys are destroyed")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Team {stack.team}")
    restore(page, "short-lived")
    expect(page.get_by_role("button", name="Delete team short-lived")).to_be_visible()

    team_id = next(each["id"] for each in send(page, "GET", "/teams").json()["items"] if each["name"] == "short-lived")
    deletion = send(page, "DELETE", f"/teams/{team_id}?permanently=true").json()

    def is_erased() -> bool:
        return send(page, "GET", f"/deletions/{deletion['id']}/certificate").status == 200

    wait_until(is_erased, "the team is erased", 90)
    page.goto("/team")
    with page.expect_download() as download:
        page.get_by_role("link", name="Certificate of erasure").click()
    file = tmp_path / "certificate.json"
    download.value.save_as(file)
    assert json.loads(file.read_text())["team"] == {"id": team_id, "name": "short-lived"}
    variables = Path(f"/proc/{stack.pid('web')}/environ").read_bytes().decode().split("\0")
    environment = dict(line.split("=", 1) for line in variables if "=" in line)
    command = [sys.executable, "manage.py", "verify_erasure", str(file)]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "is genuine: team short-lived" in result.stdout
