"""A supervisor notices a service that hangs, and gives one that starts the time it needs."""

import os
import signal
import subprocess
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

REPOSITORY = Path(__file__).parents[2]
NOTIFIES = """
import sys, time
sys.path.insert(0, sys.argv[1])
from athanor.core.service_notify import ALIVE, READY, interval_seconds, notify
notify(READY)
while True:
    notify(ALIVE)
    time.sleep(interval_seconds())
"""
BUSY_THEN_READY = """
import sys, time
sys.path.insert(0, sys.argv[1])
from athanor.core.service_notify import READY, notify
end = time.process_time() + 4.0
while time.process_time() < end:
    pass
notify(READY)
time.sleep(600)
"""
SPEAKS_FOR_ANOTHER = """
import os, socket, sys, time
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"READY=1\\nWATCHDOG=1", "\\0" + os.environ["NOTIFY_SOCKET"][1:])
    time.sleep(0.05)
"""
NOTIFIES_WITHOUT_DESCRIPTORS = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from athanor.core.service_notify import ALIVE, notify
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
notify(ALIVE)
"""
SLEEPS = "import time; time.sleep(600)"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    made = DataFolder(tmp_path)
    for path in (made.run, made.logs):
        path.mkdir()
    return made


def service(
    folder: DataFolder,
    script: str,
    *,
    name: str = "one",
    limit: float = 1.5,
    answers: Callable[[], bool] | None = None,
    notifies: bool = True,
) -> Service:
    return Service(
        name=name,
        command=[sys.executable, "-c", script, str(REPOSITORY / "platform")],
        environment=dict(os.environ),
        working_folder=folder.root,
        log=folder.logs / f"{name}.log",
        answers=answers,
        notifies=notifies,
        hung_after_seconds=limit,
    )


@pytest.fixture
def said() -> list[str]:
    """What the supervisor says."""
    return []


@pytest.fixture
def supervisor(folder: DataFolder, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(module, "HOUSEKEEPING_SECONDS", 0.1)
    return Supervisor(folder, said.append)


@pytest.fixture
def run(supervisor: Supervisor, said: list[str]) -> Iterator[Callable[[Service], list[str]]]:
    """Run one service until the test ends. Returns what the supervisor says."""
    threads: list[threading.Thread] = []

    def begin(service: Service) -> list[str]:
        supervisor.start([service])
        threads.append(threading.Thread(target=supervisor.run, args=("",)))
        threads[0].start()
        return said

    yield begin
    supervisor.stop_asked = True
    for thread in threads:
        thread.join(30)
    supervisor.stop()


def process(folder: DataFolder) -> ProcessIdentity:
    identity = ProcessIdentity.from_json(read_json(folder.state)["services"]["one"]["process"])
    assert identity is not None
    return identity


def test_a_frozen_service_that_notifies_is_started_again(folder: DataFolder, run: Callable) -> None:
    said = run(service(folder, NOTIFIES))
    before = process(folder)
    os.kill(before.pid, signal.SIGSTOP)
    wait_until(lambda: process(folder) != before, "it is started again", 20)
    assert not before.is_alive()
    assert said[0] == "one: no sign of life for 2 s; killing it"
    assert "killed by SIGKILL" in said[1]


def test_a_service_that_no_longer_answers_is_started_again(folder: DataFolder, run: Callable) -> None:
    hung: set[int] = set()
    run(service(folder, SLEEPS, notifies=False, answers=lambda: process_or_none(folder) not in hung))
    before = process(folder)
    hung.add(before.pid)
    wait_until(lambda: process(folder) != before, "it is started again", 20)


def process_or_none(folder: DataFolder) -> int | None:
    return process(folder).pid if folder.state.exists() else None


def test_a_service_that_notifies_runs_on(folder: DataFolder, supervisor: Supervisor, run: Callable) -> None:
    """Its messages alone count as signs of life."""
    said = run(service(folder, NOTIFIES, limit=6.0))
    (running,) = supervisor._running
    heard_at = running.heard_at
    wait_until(lambda: running.heard_at > heard_at + 3.0, "the supervisor hears it again and again", 60)
    assert said == []


def test_a_notification_that_cannot_be_sent_ends_no_service() -> None:
    subprocess.run(
        [sys.executable, "-c", NOTIFIES_WITHOUT_DESCRIPTORS, str(REPOSITORY / "platform")],
        env={**os.environ, "NOTIFY_SOCKET": "@nothing-listens-here"},
        check=True,
        timeout=60,
    )


def test_no_other_process_speaks_for_a_service(folder: DataFolder, run: Callable) -> None:
    """The message comes from a child process with another pid: the service never becomes ready."""
    script = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SPEAKS_FOR_ANOTHER!r}]); "
    with pytest.raises(StackError, match="one does not start"):
        run(service(folder, script + "time.sleep(600)"))


def test_a_service_that_is_at_work_has_all_the_time_it_needs(folder: DataFolder, run: Callable) -> None:
    """It takes four seconds of CPU time to start, and could hang for three."""
    run(service(folder, BUSY_THEN_READY, limit=3.0))
    assert process(folder).is_alive()


def test_a_service_that_does_nothing_is_given_up(folder: DataFolder, run: Callable) -> None:
    with pytest.raises(StackError, match=r"one does not start \(it runs, and is not ready\)"):
        run(service(folder, SLEEPS))


def test_a_service_that_is_ready_and_never_answers_is_given_up(
    folder: DataFolder, run: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a web server with the wrong password of its database."""
    monkeypatch.setattr(module, "ANSWERS_WITHIN_SECONDS", 0.5)
    with pytest.raises(StackError, match="one does not start"):
        run(service(folder, NOTIFIES, answers=lambda: False))


def test_who_waits_is_told_for_what(folder: DataFolder, run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAY_WAITING_SECONDS", 0.5)
    said = run(service(folder, BUSY_THEN_READY, limit=10.0))
    assert said[0].startswith("waiting for one, which are at work")
