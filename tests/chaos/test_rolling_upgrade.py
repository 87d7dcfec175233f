"""An upgrade while a job trains: programs of the version before and of this one on the same database.

Part of `make chaos`. The version before is the newest tag that is not of this commit, or the commit that
ATHANOR_TEST_PREVIOUS names.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.bench.platform_stack import settings_of
from tests.e2e.conftest import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]
LONG = 100_000  # steps: the job is running whenever it is looked at


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip()


PREVIOUS = os.environ.get("ATHANOR_TEST_PREVIOUS") or git("describe", "--tags", "--abbrev=0", "HEAD^")
needs_previous = pytest.mark.skipif(not PREVIOUS, reason="no version before: there is no tag, and none is named")


class Version:
    """The code of a commit, in a folder."""

    def __init__(self, folder: Path, revision: str) -> None:
        folder.mkdir()
        archive = subprocess.run(["git", "archive", revision], cwd=REPOSITORY, capture_output=True, check=True)
        subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        (folder / "frontend" / "dist").mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def environment(self, stack: Stack) -> dict[str, str]:
        """Return the variables of the stack's programs, with this code."""
        paths = f"{self.folder / 'platform'}{os.pathsep}{self.folder}"
        return {**stack.environment, **settings_of(stack), "PYTHONPATH": paths}

    @contextmanager
    def program(self, stack: Stack, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program of this version beside those of the stack."""
        command = [sys.executable, "-m", "athanor.config.program", *arguments]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment(stack))
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait()


class EarlierStack(Stack):
    """A stack that is started by the code of another version."""

    version: Version

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        paths = f"{self.version.folder / 'platform'}{os.pathsep}{self.version.folder}"
        return subprocess.run(
            [sys.executable, "-m", "deploy.local", *arguments],
            cwd=self.version.folder, env={**self.environment, "PYTHONPATH": paths},
            capture_output=True, text=True, check=False,
        )  # fmt: skip


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@needs_previous
def test_both_versions_work_on_one_database_while_a_job_trains(tmp_path: Path) -> None:
    version = Version(tmp_path / "previous", PREVIOUS)
    before = EarlierStack(tmp_path / "stack")
    before.version = version
    before.up()
    stack = Stack(tmp_path / "stack")
    try:
        old_job = before.submit(tmp_path, processes=1, steps=LONG)
        before.wait_for_step(old_job, 20)
        stack.up()  # other code: migrates, and starts its programs in the place of those
        step = stack.job(old_job)["progress"]["step"]
        stack.wait_for_step(old_job, step + 20)
        assert stack.job(old_job)["attempt_count"] == 1, "the agent of the version before reports to this one"

        listening = port()
        with (
            version.program(stack, "web", "--listen", f"127.0.0.1:{listening}"),
            version.program(stack, "worker") as old_worker,
        ):
            address = f"http://127.0.0.1:{listening}"
            wait_until(lambda: is_ready(address), "the web of the version before serves", 60)
            stack.suspend("worker")
            by_old = submit_to(address, stack, tmp_path)
            assert stack.wait_for_end(by_old)["status"] == "succeeded", "by the worker of the version before"
            stack.resume("worker")
            old_worker.send_signal(signal.SIGSTOP)
            by_new = stack.submit(tmp_path, processes=1)
            assert stack.wait_for_end(by_new)["status"] == "succeeded", "by the worker of this version"
            assert httpx.get(f"{address}/api/v1/jobs/{by_new}", headers=bearer(stack)).json()["status"] == "succeeded"

        assert stack.job(old_job)["attempt_count"] == 1
        stack.json("cancel", old_job)
        assert stack.wait_for_end(old_job)["status"] == "cancelled"
    finally:
        stack.kill_everything()


def bearer(stack: Stack) -> dict[str, str]:
    return {"Authorization": f"Bearer {stack.token}"}


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=5).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def submit_to(address: str, stack: Stack, folder: Path) -> str:
    """Submit a job to one of several webs. Return its id."""
    result = subprocess.run(
        [str(Path(sys.executable).with_name("athanor")), "submit", str(stack.spec(folder, 1)), "--json"],
        env={**stack.environment, "ATHANOR_URL": address, "ATHANOR_TOKEN": stack.token},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return str(json.loads(result.stdout)["id"])
