"""What every backend promises, checked on each kind. A new kind adds one `Case`."""

import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from athanor.backends.base import Backend, Handle, ListsOurs, Observation, Presence, Submission
from athanor.backends.fake.backend import WORLDS, FakeBackend, World
from athanor.backends.local import folder
from athanor.backends.local.backend import LocalBackend
from athanor.backends.plan import LaunchPlan, backend_name
from deploy.local.handle import wait_until


@dataclass
class Case:
    """A backend, a submission of it that runs until `finish` is called, and how to end it."""

    backend: Backend
    finish: Callable[[str], None]
    started: Callable[[], int]
    command: tuple[str, ...] = ()

    def submission(self) -> Submission:
        plan = LaunchPlan(
            attempt_id=f"att_{uuid.uuid4().hex}",
            backend_name=backend_name(f"att_{uuid.uuid4().hex}"),
            nodes=1,
            processes_per_node=1,
            accelerator="cpu",
            time_limit_seconds=60,
            environment={"ATHANOR_AGENT_URL": "http://127.0.0.1:1"},
            secrets={"ATHANOR_ATTEMPT_TOKEN": "planted-secret"},
        )
        rendered = self.backend.render(plan)
        return Submission(**{**vars(rendered), "command": self.command or rendered.command})

    def look(self, handle: Handle) -> Observation:
        return self.backend.observe([handle])[handle]


# Runs until a file appears, and counts how often it was started.
PROGRAM = """
import os, sys, time
root = sys.argv[1]
open(os.path.join(root, "starts"), "a").write("x")
while not os.path.exists(os.path.join(root, "finish")):
    time.sleep(0.02)
"""


@pytest.fixture
def local(tmp_path: Path) -> Case:
    signals = tmp_path / "signals"
    signals.mkdir()
    starts = signals / "starts"
    return Case(
        LocalBackend(str(tmp_path / "jobs"), kill_after_seconds=0.3),
        finish=lambda _: (signals / "finish").touch(),
        started=lambda: len(starts.read_text()) if starts.exists() else 0,
        command=(sys.executable, "-c", PROGRAM, str(signals)),
    )


@pytest.fixture
def fake() -> Iterator[Case]:
    world = WORLDS.setdefault("conformance", World())
    yield Case(FakeBackend("conformance"), finish=world.finish, started=lambda: len(world.created))
    del WORLDS["conformance"]


@pytest.fixture(params=["fake", "local"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found: Case = request.getfixturevalue(request.param)
    yield found


def until(case: Case, handle: Handle, presence: Presence) -> None:
    wait_until(lambda: case.look(handle).presence is presence, f"{handle} is {presence}", 20)


def test_render_is_pure_and_shows_no_secret(case: Case) -> None:
    plan = LaunchPlan("att_1", "athanor-1", 1, 1, "cpu", 60, {"A": "b"}, {"TOKEN": "planted-secret"})
    assert case.backend.render(plan) == case.backend.render(plan)
    assert "planted-secret" not in case.backend.render(plan).text
    assert "planted-secret" not in repr(case.backend.render(plan))


def test_what_was_never_submitted_is_absent(case: Case) -> None:
    assert case.look(Handle("athanor-never")).presence is Presence.ABSENT


def test_a_submission_runs_and_its_end_is_seen(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    until(case, handle, Presence.PRESENT)
    case.finish(handle.backend_name)
    until(case, handle, Presence.FINISHED)
    assert case.look(handle).exit_status == 0


def test_submitting_again_adopts_while_it_runs_and_after_it_ended(case: Case) -> None:
    submission = case.submission()
    handle = case.backend.submit(submission)
    wait_until(lambda: case.started() == 1, "it has started")
    assert case.backend.submit(submission) == handle
    case.finish(handle.backend_name)
    until(case, handle, Presence.FINISHED)
    assert case.backend.submit(submission) == handle
    assert case.look(handle).presence is Presence.FINISHED
    assert case.started() == 1


def test_cancel_is_idempotent_and_may_name_what_is_not_there(case: Case) -> None:
    case.backend.cancel(Handle("athanor-never"))
    handle = case.backend.submit(case.submission())
    for _ in range(2):
        case.backend.cancel(handle)
        case.backend.cancel(handle, force=True)


def test_each_handle_gets_an_answer(case: Case) -> None:
    handle = case.backend.submit(case.submission())
    never = Handle("athanor-never")
    answers = case.backend.observe([handle, never])
    assert set(answers) == {handle, never}
    case.finish(handle.backend_name)


def test_a_backend_that_lists_what_is_ours_names_the_living_alone(case: Case) -> None:
    if not isinstance(case.backend, ListsOurs):
        pytest.skip("it does not declare this capability")
    assert case.backend.list_ours() == frozenset()
    handle = case.backend.submit(case.submission())
    until(case, handle, Presence.PRESENT)
    assert case.backend.list_ours() == {handle.backend_name}
    case.finish(handle.backend_name)
    until(case, handle, Presence.FINISHED)
    assert case.backend.list_ours() == frozenset()


def keeper_of(case: Case, handle: Handle) -> psutil.Process:
    root = case.backend._root  # type: ignore[attr-defined] # the folder is the local backend's whole state
    return psutil.Process(int((root / handle.backend_name / folder.STARTED).read_text().split()[0]))


def test_local_cancel_asks_first_and_kills_later(local: Case) -> None:
    handle = local.backend.submit(local.submission())
    until(local, handle, Presence.PRESENT)
    local.backend.cancel(handle)
    until(local, handle, Presence.FINISHED)
    assert local.look(handle).exit_status == -signal.SIGTERM


def test_local_processes_that_ignore_the_request_are_killed(local: Case) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PROGRAM
    local.command = (*local.command[:2], stubborn, *local.command[3:])
    handle = local.backend.submit(local.submission())
    wait_until(lambda: local.started() == 1, "it has started")
    local.backend.cancel(handle)
    until(local, handle, Presence.FINISHED)
    assert local.look(handle).exit_status == -signal.SIGKILL


def test_local_a_killed_keeper_takes_its_processes_along_and_is_never_started_again(local: Case) -> None:
    submission = local.submission()
    handle = local.backend.submit(submission)
    wait_until(lambda: local.started() == 1, "it has started")
    keeper = keeper_of(local, handle)
    children = keeper.children()
    assert children
    keeper.kill()
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    until(local, handle, Presence.FINISHED)
    assert local.look(handle).native_state == "vanished"
    assert local.backend.submit(submission) == handle
    assert local.look(handle).presence is Presence.FINISHED
    assert local.started() == 1


def test_local_processes_get_no_variable_but_the_named_ones(
    local: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://planted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    handle = local.backend.submit(local.submission())
    wait_until(lambda: local.started() == 1, "it has started")
    (process,) = keeper_of(local, handle).children()
    environment = process.environ()
    local.finish(handle.backend_name)
    assert environment["ATHANOR_ATTEMPT_TOKEN"] == "planted-secret"
    assert "planted" not in {environment.get("DATABASE_URL"), environment.get("AWS_SECRET_ACCESS_KEY")}
    assert "planted-secret" not in " ".join(process.cmdline() if process.is_running() else [])


def test_local_a_program_that_is_not_there_is_an_end_with_words(local: Case) -> None:
    local.command = ("/nowhere/python",)
    handle = local.backend.submit(local.submission())
    until(local, handle, Presence.FINISHED)
    assert local.look(handle).exit_status == 127
    assert "/nowhere/python" in local.look(handle).native_reason
