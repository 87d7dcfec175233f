"""Clusters in a real Chromium: registered, examined, their nodes looked at and taken out of use."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from athanor.backends.base import Cause
from athanor.backends.facts import Finding, Level, NodeFacts, NodeState
from athanor.backends.fake.backend import World
from deploy.local.handle import wait_until
from deploy.local.install import FRONTEND
from tests.e2e.administration import write_server_part
from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.conftest import TINY
from tests.e2e.test_dashboard import OVERFLOW, UNNAMED_CONTROLS
from tests.worlds import ServedWorld

pytestmark = BROWSER_MARKS
AXE = FRONTEND / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = """async () => (await axe.run({runOnly: ['wcag2a', 'wcag2aa']})).violations.map(
  (found) => found.id + ' ' + found.nodes.map((node) => node.html + ' ' + node.failureSummary).join(' '))"""


@pytest.fixture
def iron() -> Iterator[ServedWorld]:
    world = World()
    for name in ("gpu-01", "gpu-02"):
        world.nodes[name] = NodeFacts(
            name, NodeState.READY, pools=("gpu",), accelerator="h100", slots=8, slots_used=3, cpus=96,
            memory_bytes=2**40, topology=("spine", "leaf-1"), labels={"rack": "r1"},
        )  # fmt: skip
    world.nodes["gpu-03"] = NodeFacts("gpu-03", NodeState.DOWN, reason="Not responding", accelerator="h100", slots=8)
    world.findings = [
        Finding("answer", Level.OK, "it answers"),
        Finding("accounting", Level.WARNING, "there is no accounting", "set up slurmdbd, so that ends are kept"),
    ]
    served = ServedWorld(world)
    yield served
    served.close()


def call(page: Page, method: str, path: str, body: Any = None) -> Any:
    token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
    answer = page.request.fetch(
        f"/api/v1/{path}", method=method, data=body, headers={"X-CSRFToken": token, "Referer": page.url}
    )
    assert answer.ok, answer.text()
    return answer.json() if answer.status != 204 else None


@pytest.fixture
def cluster(page: Page, stack, iron: ServedWorld) -> Iterator[Any]:
    """The cluster as it was registered, by an administrator whose page it is."""
    sign_in(page, stack, "/clusters")
    name = f"iron-{iron.address.partition(':')[2]}"
    write_server_part(stack.data_dir, name, "fake_cluster", {"address": iron.address})
    made = call(page, "POST", "clusters", {"name": name, "kind": "fake_cluster"})
    call(page, "POST", f"clusters/{made['id']}:probe")
    yield made
    page.goto("/clusters")
    call(page, "PATCH", f"clusters/{made['id']}", {"enabled": False})


def is_clean(page: Page) -> None:
    assert page.evaluate(UNNAMED_CONTROLS) == []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        expect(page.locator("html")).to_have_attribute("data-mantine-color-scheme", scheme)
        page.evaluate(AXE.read_text())  # as the debugger does: the content policy allows no script element
        with suppress(AssertionError):  # colours fade to those of the other scheme
            wait_until(lambda: not page.evaluate(SERIOUS), "no accessibility rule is broken", 5)
        assert page.evaluate(SERIOUS) == [], scheme
    before = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(OVERFLOW) <= 0
    assert before is not None
    page.set_viewport_size(before)


def test_this_machine_is_examined_and_listed_from_the_start(page: Page, stack) -> None:
    sign_in(page, stack)
    page.get_by_role("link", name="Administration").click()
    row = page.get_by_role("row", name=re.compile("local"))
    expect(row).to_contain_text("Usable", timeout=60_000)
    expect(row).to_contain_text("1 of 1 ready")
    is_clean(page)
    page.get_by_role("link", name="local").click()
    findings = page.get_by_role("table", name="Findings")
    for check in ("directory", "disk", "agent", "torch", "platform_address", "object_store"):
        expect(findings.get_by_role("row", name=re.compile(check))).to_contain_text("Passed")
    expect(page.get_by_role("table", name="Pools")).to_contain_text("cpu")
    is_clean(page)
    assert stack.json("cluster", "list")[0]["usable"] is True


def test_a_cluster_is_registered_with_errors_at_their_place(page: Page, stack, iron: ServedWorld) -> None:
    sign_in(page, stack, "/clusters")
    page.get_by_role("link", name="Register a cluster").click()
    page.get_by_role("textbox", name="Name").fill("second")
    page.get_by_label("Kind", exact=True).select_option("local")
    editor = page.get_by_label("Configuration as YAML")
    page.get_by_text("More settings").click()
    kill_after = page.get_by_label("Kill after")
    expect(kill_after).to_have_attribute("placeholder", "1m")
    kill_after.fill("2d")
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("less than or equal to 3600 (1h); got '2d'")
    expect(kill_after).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".cm-lint-marker-error")).to_have_count(1)
    is_clean(page)
    editor.fill("directory: /proc/second\n")
    expect(kill_after).to_have_value("")
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("is set on the server alone")
    editor.fill("")
    write_server_part(stack.data_dir, "second", "local", {"directory": "/proc/second"})
    kill_after.fill("30s")
    page.get_by_text("Profile", exact=True).click()
    page.get_by_label("Fabric").select_option("roce")
    expect(editor).to_contain_text("kill_after_seconds: 30s")
    expect(editor).to_contain_text("fabric: roce")
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Jobs cannot run there")
    expect(page.get_by_role("table", name="Findings")).to_contain_text("to one that it may write")
    write_server_part(stack.data_dir, "second", "local", {"directory": str(stack.folder.jobs)})
    page.get_by_role("button", name="Register").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("second")
    page.get_by_role("button", name="Run health check").click()
    expect(page.get_by_role("table", name="Findings")).to_contain_text("is writable")
    page.get_by_role("button", name=re.compile("Make pool")).click()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(page.get_by_role("table", name="Pools").get_by_role("row")).to_have_count(2)
    page.get_by_role("tab", name="Configuration").click()
    expect(page.get_by_label("Configuration as YAML")).to_contain_text("kill_after_seconds: 30s")
    page.get_by_text("More settings").click()
    expect(page.get_by_label("Kill after")).to_have_value("30s")
    page.get_by_role("tab", name="Overview").click()
    page.get_by_role("switch", name="Admits jobs").click()
    expect(page.get_by_text("No new jobs are admitted here")).to_be_visible()
    call(page, "DELETE", page.url.replace(f"{stack.url}/", ""))


@pytest.mark.slow
def test_a_bad_node_is_looked_at_and_quarantined(page: Page, stack, iron: ServedWorld, cluster: Any) -> None:
    page.goto(f"/clusters/{cluster['id']}")
    findings = page.get_by_role("table", name="Findings")
    expect(findings.get_by_role("row").nth(1)).to_contain_text("Warning")
    expect(findings).to_contain_text("Set up slurmdbd, so that ends are kept")
    expect(page.get_by_text("6 of 24 h100")).to_be_visible()
    page.get_by_role("tab", name="Nodes").click()
    nodes = page.get_by_role("table", name="Nodes")
    expect(nodes.get_by_role("row", name=re.compile("gpu-03"))).to_contain_text("Not responding")
    is_clean(page)
    page.get_by_role("button", name="Open node gpu-01").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("rack=r1")
    dialog.get_by_role("button", name="Quarantine").click()
    dialog.get_by_role("button", name="Back").click()
    assert iron.world.nodes["gpu-01"].state is NodeState.READY, "nothing happens before the confirmation"
    dialog.get_by_role("button", name="Quarantine").click()
    dialog.get_by_label("Reason").fill("Xid 79 twice")
    dialog.get_by_role("button", name="Quarantine gpu-01").click()
    expect(dialog.get_by_role("table", name="Incidents")).to_contain_text("Xid 79 twice")
    wait_until(lambda: iron.world.nodes["gpu-01"].state is NodeState.DRAINED, "its cluster drained it", 20)
    is_clean(page)
    page.keyboard.press("Escape")
    expect(nodes.get_by_role("row", name=re.compile("gpu-01"))).to_contain_text("Quarantine")
    page.get_by_label("State").select_option("quarantined")
    expect(nodes.get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="Open node gpu-01").click()
    dialog.get_by_role("button", name="Release").click()
    dialog.get_by_role("button", name="Release gpu-01").click()
    wait_until(lambda: iron.world.nodes["gpu-01"].state is NodeState.READY, "its cluster took it back", 20)
    page.keyboard.press("Escape")
    iron.world.findings = [Finding("answer", Level.ERROR, "munge is down", "start munged")]
    page.get_by_role("tab", name="Overview").click()
    page.get_by_role("button", name="Run health check").click()
    expect(page.get_by_text("Start munged")).to_be_visible()
    expect(page.get_by_text("Not usable")).to_be_visible()
    page.get_by_role("tab", name="Health checks").click()
    expect(page.get_by_role("table", name="Health checks").get_by_role("row")).to_have_count(3)
    is_clean(page)


@pytest.mark.slow
def test_a_lost_node_is_told_on_the_jobs_page_and_on_its_own(
    page: Page, stack, iron: ServedWorld, cluster: Any
) -> None:
    iron.world.nodes = {"gpu-07": NodeFacts("gpu-07", NodeState.READY, accelerator="h100", slots=8, pools=("gpu",))}
    call(page, "POST", f"clusters/{cluster['id']}:probe")
    pool = {"accelerator": "h100", "nodes": 1, "slots_per_node": 8, "memory_bytes": 2**40}
    call(page, "PUT", f"clusters/{cluster['id']}/pools/gpu", pool)
    resources = {"cluster": cluster["name"], "accelerator": "h100", "processes_per_node": 1}
    job = call(page, "POST", "jobs", {**TINY, "team": stack.team, "resources": resources})
    wait_until(lambda: iron.world.created, "it is there", 30)
    (first,) = iron.world.created
    page.goto(f"/jobs/{job['id']}")
    attempts = page.get_by_role("region", name="Attempts")
    expect(attempts).to_contain_text(f"On {cluster['name']}")
    expect(attempts).to_contain_text("gpu-07")
    attempts.get_by_role("button", name=re.compile("Show the output of attempt 1")).click()
    expect(attempts.get_by_role("log", name="Output of attempt 1")).to_contain_text("hello from the program")
    is_clean(page)
    page.get_by_role("tab", name="Spec").click()
    page.get_by_text("Submission", exact=True).click()
    expect(page.get_by_role("textbox", name="Submission")).to_contain_text("ATHANOR_ATTEMPT_TOKEN=<secret>")
    page.goto(f"/clusters/{cluster['id']}?tab=queue")
    expect(page.get_by_role("table", name="Queue").get_by_role("row", name=re.compile(first))).to_contain_text("gpu-07")
    is_clean(page)

    iron.world.end(first, Cause.NODE_LOST)
    wait_until(lambda: len(iron.world.created) == 2, "it is tried again", 60)
    page.goto(f"/jobs/{job['id']}")
    expect(attempts).to_contain_text("Its node was lost")
    page.goto(f"/clusters/{cluster['id']}?tab=nodes")
    page.get_by_role("button", name="Open node gpu-07").click()
    expect(page.get_by_role("table", name="Incidents")).to_contain_text(job["id"])
    page.get_by_role("dialog").get_by_role("button", name="Quarantine").click()
    page.get_by_role("dialog").get_by_label("Reason").fill("lost once")
    page.get_by_role("button", name="Quarantine gpu-07").click()
    expect(page.get_by_role("alert")).to_contain_text("Disable the cluster instead")

    stack.json("cancel", job["id"])
    second = iron.world.created[1]
    wait_until(lambda: second in iron.world.cancelled, "it is asked to end", 30)
    iron.world.finish(second)
    assert stack.wait_for_end(job["id"])["status"] == "cancelled"
