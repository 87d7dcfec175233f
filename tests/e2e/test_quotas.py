"""Quotas and the queue in a real Chromium: the tree is changed with a preview and audited, with immediate effect."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from athanor.backends.facts import NodeFacts, NodeState
from athanor.backends.fake.backend import World
from deploy.local.handle import wait_until
from tests.e2e.administration import write_server_part
from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.conftest import TINY
from tests.e2e.test_clusters import call, is_clean
from tests.worlds import ServedWorld

pytestmark = BROWSER_MARKS
ACCELERATOR = "tpu9"  # of no other test, whose jobs its quotas would hold up


def kept(page: Page, name: str) -> None:
    """For whoever looks at it: with ATHANOR_SCREENSHOTS, light, dark and narrow."""
    folder = os.environ.get("ATHANOR_SCREENSHOTS")
    if not folder:
        return
    for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390)):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_viewport_size({"width": width, "height": 860})
        page.wait_for_function("document.fonts.status === 'loaded'")
        page.screenshot(path=str(Path(folder) / f"{name}-{scheme}-{width}.png"), full_page=True)
    page.set_viewport_size({"width": 1280, "height": 860})


@pytest.fixture
def pool(page: Page, stack) -> Iterator[str]:
    """Eight slots of an accelerator of its own; afterwards the tree is as it was."""
    world = World()
    world.nodes["n1"] = NodeFacts("n1", NodeState.READY, accelerator=ACCELERATOR, slots=8, pools=("main",))
    served = ServedWorld(world)
    sign_in(page, stack, "/quotas")
    before = call(page, "GET", "quotas/document")
    name = f"tin-{served.address.partition(':')[2]}"
    write_server_part(stack.data_dir, name, "fake_cluster", {"address": served.address})
    made = call(page, "POST", "clusters", {"name": name, "kind": "fake_cluster"})
    facts = {"accelerator": ACCELERATOR, "nodes": 1, "slots_per_node": 8, "memory_bytes": 2**40}
    call(page, "PUT", f"clusters/{made['id']}/pools/main", facts)
    yield name
    page.goto("/quotas")
    for job in call(page, "GET", "jobs?status=queued,admitted,dispatching,starting,running&limit=50")["items"]:
        if job["cluster"] == name:
            call(page, "POST", f"jobs/{job['id']}:cancel")
    for created in world.created:
        world.finish(created)
    call(page, "PUT", "quotas", before)
    call(page, "PATCH", f"clusters/{made['id']}", {"enabled": False})
    served.close()


def submit(page: Page, team: str, cluster: str, name: str, processes: int) -> Any:
    resources = {"cluster": cluster, "accelerator": ACCELERATOR, "processes_per_node": processes}
    return call(page, "POST", "jobs", {**TINY, "team": team, "name": name, "resources": resources})


@pytest.mark.slow
def test_a_tree_is_made_with_a_preview_and_holds_at_once(page: Page, stack, pool: str) -> None:
    expect(page.get_by_role("heading", level=1)).to_have_text("Quotas")
    page.get_by_role("button", name="New group").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("research lab")
    expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("alert")).to_contain_text("/changes/0/node")
    dialog.get_by_role("textbox", name="Name").fill("research")
    dialog.get_by_role("button", name="Add an accelerator").click()
    dialog.get_by_label("Accelerator", exact=True).select_option(ACCELERATOR)
    dialog.get_by_role("group", name=f"Slots of {ACCELERATOR}").get_by_label("Own slots").fill("2")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog.get_by_role("region", name="Preview")).to_contain_text("+ research")
    is_clean(page)
    kept(page, "dialog")
    dialog.get_by_role("button", name="Save").click()
    tree = page.get_by_role("table", name="Quotas")
    expect(tree.get_by_role("row", name=re.compile("research"))).to_contain_text("0 of 2")

    page.get_by_role("button", name=f"Change {stack.team}").click()
    dialog.get_by_label("Belongs to").select_option("research")
    dialog.get_by_role("button", name="Add an accelerator").click()
    dialog.get_by_label("Accelerator", exact=True).select_option(ACCELERATOR)
    slots = dialog.get_by_role("group", name=f"Slots of {ACCELERATOR}")
    slots.get_by_label("Own slots").fill("2")
    slots.get_by_label("Borrow limit").fill("0")
    dialog.get_by_label("Waiting jobs").fill("2")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text(f"{stack.team} -> research/{stack.team}")
    dialog.get_by_role("button", name="Save").click()
    expect(tree.get_by_role("row", name=re.compile(f"{stack.team} team"))).to_contain_text("waiting jobs: 2")

    held = submit(page, stack.team, pool, "fits", 2)
    large = submit(page, stack.team, pool, "too-large", 4)
    wait_until(lambda: stack.job(held["id"])["status"] != "queued", "the one within the quota starts", 60)
    wait_until(lambda: (stack.job(large["id"])["reason"] or {}).get("code") == "quota_exceeded", "it says why", 60)
    page.goto("/queue")
    line = page.get_by_role("table", name=f"Queue of {pool}/main").get_by_role("row", name=re.compile("too-large"))
    expect(line).to_contain_text(ACCELERATOR)
    is_clean(page)
    kept(page, "queue")
    line.get_by_role("link", name="too-large").click()
    expect(page.get_by_role("region", name="Queue status")).to_contain_text("Queue position")
    is_clean(page)
    kept(page, "job")
    refused = stack.athanor("queue")
    assert "too-large" in refused.stdout

    page.goto("/quotas")
    row = tree.get_by_role("row", name=re.compile(f"{stack.team} team"))
    expect(row).to_contain_text("2 of 2")
    is_clean(page)
    kept(page, "quotas")
    page.get_by_role("button", name=f"Change research/{stack.team}").click()
    dialog.get_by_label("Borrow limit").fill("4")
    dialog.get_by_role("group", name=f"Slots of {ACCELERATOR}").get_by_label("Own slots").fill("4")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("Would start immediately")
    expect(dialog).to_contain_text(large["id"])
    dialog.get_by_role("button", name="Save").click()
    wait_until(lambda: stack.job(large["id"])["status"] != "queued", "with a larger quota it starts", 60)
    expect(row).to_contain_text("6 of 4, 2 borrowed")
    kept(page, "borrowed")

    page.get_by_role("button", name="Change organisation").click()
    dialog.get_by_label("Total slots").fill("1")
    dialog.get_by_role("button", name="Preview").click()
    expect(dialog).to_contain_text("6 used slots, and 1 would be allowed")
    kept(page, "over")
    dialog.get_by_role("button", name="Back").click()
    page.goto("/audit")
    expect(page.get_by_text("quota.change").first).to_be_visible()


def test_settings_of_admission_are_changed(page: Page, stack) -> None:
    sign_in(page, stack, "/quotas")
    before = call(page, "GET", "quotas/settings")
    page.get_by_role("button", name="Admission settings").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Minimum run time before preemption").fill("2h")
    is_clean(page)
    kept(page, "settings")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)
    assert call(page, "GET", "quotas/settings") == {**before, "protected_seconds": 7200}
    call(page, "PUT", "quotas/settings", before)
