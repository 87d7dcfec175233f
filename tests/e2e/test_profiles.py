"""Traces of a run that goes on: asked for, waited for, opened."""

import gzip
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from deploy.local.handle import wait_until
from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.test_faults import a_trainer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def with_browser(test: Callable) -> Callable:
    for mark in BROWSER_MARKS:
        test = mark(test)
    return test


def events_of(stack, job_id: str) -> list[str]:
    return [event["type"] for event in stack.get(f"/jobs/{job_id}/events", limit=1000)["items"]]


@pytest.mark.slow
def test_a_running_job_is_profiled_and_lives_on_though_a_process_is_killed(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=100_000)
    stack.wait_for_step(job_id, 12)
    folder = tmp_path / "traces"
    found = stack.json("profile", job_id, "--steps", "3", "--output", str(folder))
    first = found["first_step"]
    assert (found["status"], found["last_step"] - first) == ("ready", 2)
    assert first > 12
    for rank in (0, 1):
        packed = (folder / f"steps-{first}-{first + 2}-rank-{rank}.json.gz").read_bytes()
        names = [event.get("name") for event in json.loads(gzip.decompress(packed))["traceEvents"]]
        assert {f"step {step}" for step in range(first, first + 3)} <= set(names)

    asked = stack.json("profile", job_id, "--steps", "50", "--no-wait")
    refused = stack.athanor("profile", job_id)
    assert refused.returncode == 2
    assert asked["id"] in refused.stderr
    os.kill(a_trainer(stack).pid, signal.SIGKILL)
    wait_until(lambda: "generation.started" in events_of(stack, job_id), "the job restarts in place", 60)
    wait_until(lambda: events_of(stack, job_id).count("profile.ready") == 2, "the second profile is ready", 90)
    assert stack.job(job_id)["status"] == "running"
    stack.json("cancel", job_id)
    assert stack.wait_for_end(job_id)["status"] == "cancelled"


@pytest.mark.slow
@with_browser
def test_a_profile_is_asked_for_and_downloaded_on_the_dashboard(page: Page, stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=100_000)
    stack.wait_for_step(job_id, 1)
    sign_in(page, stack, f"/jobs/{job_id}")
    page.get_by_role("button", name="Profile").click()
    page.get_by_role("tab", name="Outputs").click()
    table = page.get_by_role("table", name="Profiles")
    expect(table).to_contain_text("Ready", timeout=60_000)
    with page.expect_download() as downloading:
        table.get_by_role("link", name=re.compile("Download the traces")).click()
    assert Path(downloading.value.path()).stat().st_size > 0
    stack.json("cancel", job_id)
