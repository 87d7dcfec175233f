"""A supervisor whose disk is full keeps its services running, and resumes when there is room again."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local import supervisor as module
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json
from deploy.local.handle import wait_until
from deploy.local.processes import ProcessIdentity
from deploy.local.service import Service
from deploy.local.supervisor import Supervisor
from tests.small_disk import SmallDisk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "256k") as made:
        yield made


@pytest.fixture
def folder(disk: SmallDisk) -> DataFolder:
    made = DataFolder(disk.path)
    for path in (made.run, made.logs):
        path.mkdir(parents=True, exist_ok=True)
    return made


def service(folder: DataFolder) -> Service:
    return Service(
        name="sleeper",
        command=[sys.executable, "-c", "import time; time.sleep(600)"],
        environment=dict(os.environ),
        working_folder=folder.root,
        log=folder.logs / "sleeper.log",
        answers=lambda: True,
    )


@pytest.fixture
def running(folder: DataFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Supervisor, list[str]]]:
    """A supervisor that runs in a thread, and what it says."""
    monkeypatch.setattr(module, "HOUSEKEEPING_SECONDS", 0.05)
    said: list[str] = []
    supervisor = Supervisor(folder, said.append)
    supervisor.start([service(folder)])
    thread = threading.Thread(target=supervisor.run, args=("http://127.0.0.1:1",))
    thread.start()
    yield supervisor, said
    supervisor.stop_asked = True
    thread.join(30)
    supervisor.stop()
    assert not thread.is_alive()
    assert read_json(folder.state)["status"] == "stopped"


def process(folder: DataFolder) -> ProcessIdentity:
    identity = ProcessIdentity.from_json(read_json(folder.state)["services"]["sleeper"]["process"])
    assert identity is not None
    return identity


def said_of(said: list[str], part: str) -> Callable[[], bool]:
    return lambda: any(part in line for line in said)


def test_a_full_disk_ends_no_service_and_the_state_is_written_when_there_is_room(
    disk: SmallDisk, folder: DataFolder, running: tuple[Supervisor, list[str]]
) -> None:
    _, said = running
    wait_until(lambda: read_json(folder.state)["status"] == "ready", "the supervisor runs", 20)
    before = process(folder)
    disk.fill()
    os.kill(before.pid, 9)
    wait_until(said_of(said, "No space left"), "the state could not be written", 20)
    assert process(folder) == before, "the state file is whole, if old"
    disk.free()
    wait_until(lambda: process(folder) != before, "the state is written", 20)
    assert process(folder).is_alive()
    assert len([line for line in said if "cannot write" in line]) == 1, "it is said once"


def test_a_log_too_large_to_copy_is_emptied(
    folder: DataFolder, running: tuple[Supervisor, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = running
    log = folder.logs / "sleeper.log"
    monkeypatch.setattr(module, "LOG_BYTES", 1024)
    log.write_bytes(b"line\n" * 30_000)  # of the disk's 256 KiB
    wait_until(said_of(said, "was emptied without a copy"), "the log was emptied", 20)
    assert log.stat().st_size == 0
    assert not log.with_suffix(".log.1").exists()


def test_a_stack_that_cannot_write_its_state_does_not_start(disk: SmallDisk, folder: DataFolder) -> None:
    supervisor = Supervisor(folder, lambda line: None)
    (folder.logs / "sleeper.log").touch()
    disk.fill()
    with pytest.raises(StackError, match="make room on that disk"):
        supervisor.start([service(folder)])
    disk.free()
    supervisor.stop()
