"""Faults of the machine below a stack, while a job trains: nothing ends for good, nothing is lost, `/readyz` is true.

Part of `make chaos`. The data folder is a file system of its own, so that it can be full.
"""

import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.e2e.conftest import TINY, Stack
from tests.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
READY_SECONDS = 20  # a limit for a server that hangs; it answers within two
RECOVERED_SECONDS = 150
OBSERVE = """
import django
django.setup()
import workers.tasks
from athanor.config.celery import app
app.tasks["athanor.observe"]()
"""


@dataclass
class Machine:
    """A stack on a disk of its own, with a job that runs all the time."""

    stack: Stack
    disk: SmallDisk
    folder: Path
    job_id: str = ""

    def ready(self) -> dict[str, Any]:
        """The answer of `/readyz`; of a web that does not accept connections, none of its parts."""
        try:
            return dict(httpx.get(f"{self.stack.url}/readyz", timeout=READY_SECONDS).json())
        except httpx.TransportError as error:
            return {"status": type(error).__name__, "checks": {}}

    def submit(self, name: str, steps: int) -> subprocess.CompletedProcess[str]:
        path = self.folder / f"{name}.json"
        training = {**TINY["training"], "steps": steps, "evaluation": {"every_steps": 10_000, "sequences": 1}}
        resources = {"processes_per_node": 1, "accelerator": "cpu"}
        checkpoint = {"every_steps": 500, "keep_last": 2}
        spec = {**TINY, "name": name, "resources": resources, "checkpoint": checkpoint, "training": training}
        path.write_text(json.dumps(spec))
        return self.stack.athanor("submit", str(path), "--json")

    def step(self) -> int:
        return int((self.stack.job(self.job_id)["progress"] or {}).get("step") or 0)

    def recovers(self) -> None:
        """Wait until the platform works again: it is ready, the job trains further, and a new one ends well."""
        wait_until(lambda: self.ready()["status"] == "ok", f"ready again: {self.ready()}", RECOVERED_SECONDS)
        before = self.step()
        wait_until(lambda: self.step() > before, f"the job trains beyond step {before}", RECOVERED_SECONDS)
        submitted = self.submit("probe", 3)
        assert submitted.returncode == 0, submitted.stderr
        probe = self.stack.wait_for_end(json.loads(submitted.stdout)["id"], RECOVERED_SECONDS)
        assert probe["status"] == "succeeded", probe["reason"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    with small_disk(folder / "disk", "3g", inodes=40_000) as disk:
        stack = Stack(folder / "disk" / "data")
        stack.up()
        made = Machine(stack, disk, folder)
        made.job_id = json.loads(made.submit("runs", 10_000_000).stdout)["id"]
        stack.wait_for_step(made.job_id, 5)
        yield made
        stack.down()
        for process in stack.job_processes():
            process.kill()


@pytest.fixture(autouse=True)
def nothing_is_lost(machine: Machine) -> Iterator[None]:
    """After each fault the same attempt runs, and each of its steps was reported exactly once."""
    before = machine.stack.job(machine.job_id)
    yield
    after = machine.stack.job(machine.job_id)
    assert after["status"] == "running", after["reason"]
    assert after["attempt_count"] == before["attempt_count"]
    last = machine.step()
    window = {"names": "train/loss", "points": 5000, "after_step": max(last - 1000, 0), "to_step": last}
    steps = machine.stack.get(f"/jobs/{machine.job_id}/metrics", **window)["series"]["train/loss"]["steps"]
    assert steps == list(range(steps[0], steps[-1] + 1))


def refuses_new_work(machine: Machine) -> None:
    wait_until(lambda: machine.ready()["checks"].get("disk") == "unavailable", "readyz names the disk", 60)
    refused = machine.submit("refused", 3)
    assert refused.returncode != 0
    assert "disk" in refused.stderr
    assert "database does not answer" not in refused.stderr


def test_a_full_disk_refuses_new_work_until_there_is_room(machine: Machine) -> None:
    machine.disk.fill()
    try:
        refuses_new_work(machine)
    finally:
        machine.disk.free()
    machine.recovers()


def test_a_disk_without_inodes_refuses_new_work_until_there_are_some(machine: Machine) -> None:
    machine.disk.take_inodes()
    try:
        refuses_new_work(machine)
    finally:
        machine.disk.give_inodes()
    machine.recovers()


@pytest.mark.parametrize("service", ["web", "web-2", "worker", "valkey", "object-store"])
def test_a_service_that_may_open_no_more_files_works_again_when_it_may(machine: Machine, service: str) -> None:
    pid = machine.stack.pid(service)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(list(Path(f"/proc/{pid}/fd").iterdir())), before[1]))
    for _ in range(20):  # more connections than it has descriptors for
        machine.ready()
    if machine.stack.pid(service) == pid:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    machine.recovers()


@pytest.mark.parametrize("service", ["web", "web-2", "worker", "beat", "postgres", "valkey", "object-store"])
def test_a_frozen_service_is_started_again(machine: Machine, service: str) -> None:
    before = machine.stack.identity(service)
    machine.stack.suspend(service)
    machine.stack.wait_for_restart(service, before, 120)
    machine.recovers()


def test_all_services_frozen_together_are_started_again(machine: Machine) -> None:
    before = {name: machine.stack.identity(name) for name in machine.stack.state["services"]}
    for name in before:
        machine.stack.suspend(name)
    for name, identity in before.items():
        machine.stack.wait_for_restart(name, identity, 180)
    machine.recovers()


def test_postgresql_is_back_after_its_first_process_was_killed(machine: Machine) -> None:
    before = machine.stack.identity("postgres")
    process = before.process()
    assert process is not None
    process.kill()
    machine.stack.wait_for_restart("postgres", before)
    machine.recovers()


@pytest.mark.skipif(shutil.which("faketime") is None, reason="no faketime on this machine (apt-get install faketime)")
@pytest.mark.parametrize("offset", ["+2d", "-2d"])
def test_a_worker_with_a_wrong_clock_decides_nothing(machine: Machine, offset: str) -> None:
    environ = Path(f"/proc/{machine.stack.pid('worker')}/environ").read_bytes().decode().split("\0")
    environment = dict(line.split("=", 1) for line in environ if "=" in line)
    environment["DJANGO_SETTINGS_MODULE"] = "athanor.config.settings"
    command = ["faketime", "-f", offset, sys.executable, "-c", OBSERVE]
    run = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "seconds ahead of the database's" in run.stderr or "seconds behind the database's" in run.stderr, run.stderr
    assert machine.stack.job(machine.job_id)["status"] == "running"
    machine.recovers()


def test_the_stack_does_not_start_without_its_master_key_and_makes_none(machine: Machine) -> None:
    secrets = machine.stack.data_dir / "secrets.json"
    right = secrets.read_text()
    stopped = machine.stack.run("down")
    assert stopped.returncode == 0, stopped.stderr
    without = {name: value for name, value in json.loads(right).items() if name != "master_key"}
    try:
        secrets.write_text(json.dumps(without))
        refused = machine.stack.run("up", "--background")
        assert refused.returncode != 0
        assert "has no master_key" in refused.stdout + refused.stderr
        assert json.loads(secrets.read_text()) == without
    finally:
        secrets.write_text(right)
    machine.stack.up()
    machine.recovers()
