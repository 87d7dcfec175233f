"""A session of four roles on the real stack: a researcher, a team lead, an administrator and an operator.

After a pause, a preemption, a failure, a lack of memory and a killed agent, every figure that they see is compared with
the event log of the job, and the remedy that they read is followed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from deploy.local.administrator import Administrator
from deploy.local.handle import wait_until
from tests.control_groups import memory_limit_of_jobs
from tests.e2e.browsing import BROWSER_MARKS, sign_in
from tests.e2e.conftest import FINAL, TINY
from tests.e2e.figures import check_cost, check_costs_of_teams, check_pages, check_times, seconds_shown

pytestmark = [*BROWSER_MARKS, pytest.mark.slow]
MIB = 2**20
ENDLESS = 1_000_000  # steps of a job that its test ends
STEPS_TO_PAUSE = 150  # long enough for a pause to arrive while it trains


@dataclass(frozen=True)
class Person:
    username: str
    password: str = "a kiln burns slowly"


@pytest.fixture(scope="module")
def people(stack) -> dict[str, Person]:
    """A researcher (member) and a lead (administrator) of the team, each with an account of their own."""
    team = stack.get("/teams")["items"][0]["id"]
    joined = {}
    for name, role in (("rosa", "member"), ("lena", "admin")):
        person = Person(name)
        invitation = httpx.post(
            f"{stack.url}/api/v1/teams/{team}/invitations",
            json={"role": role},
            headers={"Authorization": f"Bearer {stack.token}"},
        ).json()
        accepted = httpx.post(
            f"{stack.url}/api/v1/invitations:accept",
            json={"token": invitation["token"], "username": person.username, "password": person.password},
        )
        assert accepted.status_code == 201, accepted.text
        joined[name] = person
    return joined


@pytest.fixture
def administrator(stack) -> Administrator:
    return Administrator(stack.credentials)


@pytest.fixture
def claimants(stack, administrator: Administrator) -> Iterator[str]:
    """Another team; half of this machine's slots are its own, half the first team's. Afterwards as before."""
    name = "takers"  # pages show the first team by its name, which other tests expect to be their own
    call = administrator.call
    [local] = [each for each in call("GET", "clusters")["items"] if each["kind"] == "local"]
    pool = local["pools"][0]
    slots = pool["nodes"] * pool["slots_per_node"]
    call("POST", "teams", {"name": name})
    tree, settings = call("GET", "quotas/document"), call("GET", "quotas/settings")
    call("PUT", "quotas/settings", {**settings, "protected_seconds": 0})
    changes = [
        {"node": node, "grants": {pool["accelerator"]: {"nominal": part}}}
        for node, part in ((stack.team, slots - slots // 2), (name, slots // 2))
    ]
    call("PATCH", "quotas", {"changes": changes})
    yield name
    for job in call("GET", "jobs?limit=50")["items"]:
        if job["status"] not in FINAL:
            call("POST", f"jobs/{job['id']}:cancel")
    call("PUT", "quotas/settings", settings)
    call("PUT", "quotas", tree)


def write_spec(folder: Path, name: str, *, processes: int = 1, steps: int = 30, **fields: Any) -> str:
    """A spec file; `fields` replace those of the same name, those of `training` one by one."""
    training = {**TINY["training"], "steps": steps, **fields.pop("training", {})}
    resources = {"processes_per_node": processes, "accelerator": "cpu"}
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**TINY, "name": name, "resources": resources, **fields, "training": training}))
    return str(path)


def wait_for_status(stack, job_id: str, status: str) -> Any:
    wait_until(lambda: stack.job(job_id)["status"] == status, f"{job_id} is {status}", 120)
    return stack.job(job_id)


def test_a_researcher_pauses_and_resumes_a_run(page: Page, stack, people: dict[str, Person], tmp_path: Path) -> None:
    sign_in(page, stack, "/jobs", person=people["rosa"])
    job_id = stack.json("submit", write_spec(tmp_path, "paused-once", steps=STEPS_TO_PAUSE))["id"]
    stack.wait_for_step(job_id, 5)
    page.goto(f"/jobs/{job_id}")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("main").locator("[data-status=paused]").first).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Time left")).to_have_count(0)
    paused = stack.job(job_id)
    assert paused["running_since"] is None
    assert paused["progress"]["eta_seconds"] is None
    ran = page.locator("dt:text-is('Ran for') + dd")
    assert seconds_shown(ran.inner_text()) == pytest.approx(paused["ran_seconds"], abs=0.6)
    expect(page.get_by_role("region", name="Attempts")).to_contain_text("It is paused at a checkpoint.")
    page.get_by_role("button", name="Resume").click()
    job = stack.wait_for_end(job_id)
    assert (job["status"], job["attempt_count"], job["preemptions"]) == ("succeeded", 2, 0)
    assert [each["reason"]["code"] for each in job["attempts"]] == ["paused_by_user", "completed"]
    assert stack.steps_of(job_id) == list(range(1, STEPS_TO_PAUSE + 1))
    log = check_times(stack, job_id)
    assert log.in_status("paused") > 0
    check_cost(stack, job_id, slots=1)
    check_pages(page, stack, job_id, log)


def test_a_researcher_runs_out_of_memory_and_follows_the_remedy(
    page: Page, stack, people: dict[str, Person], tmp_path: Path
) -> None:
    wide = {**TINY["training"]["model"]["shape"], "hidden_size": 256, "num_layers": 2, "intermediate_size": 1024}
    training = {
        "model": {"shape": wide},
        "sequence_length": 256,
        "tokens_per_step": 32_768,
        "parallelism": {"micro_batch_sequences": 128},
        "evaluation": {"every_steps": 2, "sequences": 1},
    }
    spec = write_spec(tmp_path, "too-large", steps=2, training=training, retry={"max_charged": 0})
    with memory_limit_of_jobs(stack, 1500 * MIB):
        job_id = stack.json("submit", spec)["id"]
        job = stack.wait_for_end(job_id)
        assert (job["status"], job["reason"]["code"]) == ("failed", "out_of_memory")
        assert "micro_batch_sequences auto" in job["reason"]["remedy"]
        sign_in(page, stack, f"/jobs/{job_id}", person=people["rosa"])
        expect(page.get_by_text(job["reason"]["remedy"])).to_be_visible()
        log = check_times(stack, job_id)
        assert log.in_status("running") == 0
        assert stack.get(f"/jobs/{job_id}/cost")["fault_slot_seconds"] == 0
        fork = stack.json("fork", job_id, "--set", "training.parallelism.micro_batch_sequences=auto")["id"]
        assert stack.wait_for_end(fork)["status"] == "succeeded"
    check_times(stack, fork)


def test_a_lead_compares_a_failed_run_with_its_corrected_fork(
    page: Page, stack, people: dict[str, Person], tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, "too-short", steps=ENDLESS, time_limit_seconds=10)
    job = stack.wait_for_end(job_id := stack.json("submit", spec)["id"])
    assert (job["status"], job["reason"]["code"]) == ("failed", "deadline")
    assert "fewer training.steps" in job["reason"]["remedy"]
    changes = ["--set", "training.steps=20", "--set", "time_limit_seconds=300"]
    fork = stack.json("fork", job_id, *changes)["id"]
    assert stack.wait_for_end(fork)["status"] == "succeeded"
    check_times(stack, job_id)
    sign_in(page, stack, f"/compare?jobs={job_id},{fork}", person=people["lena"])
    figures = page.get_by_role("table", name="Figures of the compared jobs")
    expected = {"Status": ["Failed", "Succeeded"], "Training loss": [], "Validation loss": []}
    for each in (job_id, fork):
        expected["Training loss"].append(f"{stack.curve(each, 'train/loss')['values'][-1]:.4f}")
        expected["Validation loss"].append(f"{stack.curve(each, 'evaluation/loss')['values'][-1]:.4f}")
    for name, values in expected.items():
        expect(figures.get_by_role("row", name=name).locator("td").nth(1)).to_have_text(values[0])
        expect(figures.get_by_role("row", name=name).locator("td").nth(2)).to_have_text(values[1])
    check_pages(page, stack, fork, check_times(stack, fork))


def test_an_administrator_lets_a_team_take_its_slots_back(
    page: Page, stack, administrator: Administrator, claimants: str, tmp_path: Path
) -> None:
    [local] = [each for each in administrator.call("GET", "clusters")["items"] if each["kind"] == "local"]
    slots = local["pools"][0]["nodes"] * local["pools"][0]["slots_per_node"]
    job_id = stack.json("submit", write_spec(tmp_path, "borrows", processes=slots, steps=ENDLESS))["id"]
    stack.wait_for_step(job_id, 15)
    claim = json.loads(Path(write_spec(tmp_path, "claims", steps=ENDLESS, team=claimants)).read_text())
    claimant = administrator.call("POST", "jobs", claim)["id"]
    wait_until(lambda: administrator.call("GET", f"jobs/{claimant}")["status"] == "running", "the claimant runs", 120)
    waiting = wait_for_status(stack, job_id, "queued")
    assert (waiting["preemptions"], waiting["running_since"]) == (1, None)
    administrator.call("POST", f"jobs/{claimant}:cancel")
    stack.wait_for_step(job_id, waiting["progress"]["step"] + 5)
    stack.json("cancel", job_id)
    job = stack.wait_for_end(job_id)
    assert [each["reason"]["code"] for each in job["attempts"]] == ["reclaimed", "stopped_by_user"]
    log = check_times(stack, job_id)
    assert job["timings"]["paused_seconds"] == 0
    check_cost(stack, job_id, slots)
    sign_in(page, stack)
    check_pages(page, stack, job_id, log)
    wait_until(lambda: administrator.call("GET", f"jobs/{claimant}")["status"] == "cancelled", "the claimant ends", 120)
    check_costs_of_teams(administrator, {stack.team, claimants})


def test_an_operator_kills_an_agent_and_nobody_is_charged(
    page: Page, stack, people: dict[str, Person], tmp_path: Path
) -> None:
    job_id = stack.json("submit", write_spec(tmp_path, "interrupted", steps=300, retry={"max_charged": 0}))["id"]
    stack.wait_for_step(job_id, 25)
    wait_until(lambda: stack.get(f"/jobs/{job_id}/checkpoints")["items"], "it has saved")
    [agent] = [each for each in stack.job_processes() if each.cmdline()[1:] == ["-m", "trainer.agent"]]
    agent.kill()
    job = stack.wait_for_end(job_id)
    assert (job["status"], job["attempt_count"]) == ("succeeded", 2)
    assert job["attempts"][0]["reason"]["blame"] == "infrastructure"
    assert stack.steps_of(job_id) == list(range(1, 301))
    log = check_times(stack, job_id)
    assert job["timings"]["lost_seconds"] > 0
    check_cost(stack, job_id, slots=1)
    sign_in(page, stack, person=people["lena"])
    check_pages(page, stack, job_id, log)
