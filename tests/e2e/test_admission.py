"""Admission in a real Chromium, with real training: what a job would wait for before it is submitted, slots that go
back to their owner at a checkpoint, and a decision that is made again."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from deploy.local.handle import wait_until
from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.conftest import TINY
from tests.e2e.test_clusters import call, is_clean
from tests.e2e.test_dashboard import TINY_YAML, write_spec
from tests.e2e.test_quotas import kept

pytestmark = BROWSER_MARKS
CLAIMANTS = "claimants"


@pytest.fixture
def half(page: Page, stack) -> Iterator[int]:
    """Half of this machine's slots belong to the team of the tests, half to another; afterwards to nobody."""
    sign_in(page, stack, "/queue")
    local = next(each for each in call(page, "GET", "clusters")["items"] if each["kind"] == "local")
    pool = local["pools"][0]
    slots = max(pool["nodes"] * pool["slots_per_node"] // 2, 1)
    call(page, "POST", "teams", {"name": CLAIMANTS})
    tree, settings = call(page, "GET", "quotas/document"), call(page, "GET", "quotas/settings")
    call(page, "PUT", "quotas/settings", {**settings, "protected_seconds": 0})
    grants = {pool["accelerator"]: {"nominal": slots}}
    call(page, "PATCH", "quotas", {"changes": [{"node": name, "grants": grants} for name in (stack.team, CLAIMANTS)]})
    yield slots
    page.goto("/queue")
    for job in call(page, "GET", "jobs?limit=50")["items"]:
        if job["status"] not in ("succeeded", "failed", "cancelled", "expired"):
            call(page, "POST", f"jobs/{job['id']}:cancel")
    call(page, "PUT", "quotas/settings", settings)
    call(page, "PUT", "quotas", tree)


def submit(page: Page, team: str, name: str, processes: int) -> str:
    spec = {
        **TINY,
        "name": name,
        "team": team,
        "resources": {"processes_per_node": processes, "accelerator": "cpu"},
        "training": {**TINY["training"], "steps": 1_000_000, "evaluation": {"every_steps": 1_000_000, "sequences": 1}},
    }
    return str(call(page, "POST", "jobs", spec)["id"])


def until(page: Page, job_id: str, status: str) -> Any:
    wait_until(lambda: call(page, "GET", f"jobs/{job_id}")["status"] == status, f"{job_id} is {status}", 120)
    return call(page, "GET", f"jobs/{job_id}")


@pytest.mark.slow
def test_borrowed_slots_go_back_at_a_checkpoint_and_come_again(page: Page, stack, half: int) -> None:
    outlook = page.get_by_role("region", name="Estimate")
    page.goto("/jobs/new")
    write_spec(page, TINY_YAML + f"team: {stack.team}\n")
    expect(outlook).to_contain_text("It would start immediately.")

    borrowing = [submit(page, stack.team, name, half) for name in ("first", "second")]
    for job_id in borrowing:
        until(page, job_id, "running")
        wait_until(lambda job_id=job_id: call(page, "GET", f"jobs/{job_id}/checkpoints")["items"], "it has saved", 120)
    page.goto("/quotas")
    row = page.get_by_role("table", name="Quotas").get_by_role("row", name=re.compile(f"{stack.team} team"))
    expect(row).to_contain_text(f"{2 * half} of {half}, {half} borrowed")

    page.goto("/jobs/new")
    write_spec(page, TINY_YAML + f"team: {stack.team}\n")
    expect(outlook).to_contain_text("It would wait")
    is_clean(page)
    kept(page, "outlook")

    claimant = submit(page, CLAIMANTS, "claimant", half)
    until(page, claimant, "running")
    [victim] = [job_id for job_id in borrowing if call(page, "GET", f"jobs/{job_id}")["preemptions"]]
    page.goto(f"/jobs/{victim}")
    expect(page.get_by_text(re.compile("reclaimed its slots")).first).to_be_visible()
    expect(page.get_by_role("region", name="Queue status")).to_contain_text("Queue position")
    saved = max(each["step"] for each in call(page, "GET", f"jobs/{victim}/checkpoints")["items"])
    assert saved > 0
    kept(page, "reclaimed")
    call(page, "POST", f"jobs/{claimant}:cancel")
    again = until(page, victim, "running")
    assert len(again["attempts"]) == 2
    page.goto("/queue")
    expect(page.get_by_text(re.compile("jobs with a start estimate|Not enough data"))).to_be_visible()

    page.goto("/operations")
    decisions = page.get_by_role("table", name="Admission decisions")
    expect(decisions).to_contain_text(victim[-6:])
    decisions.get_by_role("button", name=re.compile("^Replay decision ")).first.click()
    expect(decisions.get_by_role("status").first).to_have_text("Same result")
    is_clean(page)
    kept(page, "decisions")
