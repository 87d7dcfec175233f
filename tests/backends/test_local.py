"""Behaviour of the local backend beyond the conformance suite."""

import signal
from pathlib import Path

import psutil
import pytest

from athanor.backends.base import Presence
from athanor.backends.local.backend import LocalBackend
from deploy.local.handle import wait_until
from tests.backends.cases.base import PROGRAM
from tests.backends.cases.local import LocalCase


def test_cancel_asks_first_and_kills_later(local: LocalCase) -> None:
    handle = local.backend.submit(local.submission())
    local.until(handle, Presence.PRESENT)
    local.backend.cancel(handle)
    local.until(handle, Presence.FINISHED)
    assert local.observe(handle).exit_status == -signal.SIGTERM


def test_what_lies_on_this_machine_is_readable_by_its_user_alone(local: LocalCase) -> None:
    handle = local.backend.submit(local.submission())
    cache = local.root / "cache"
    assert {each.stat().st_mode & 0o777 for each in (cache, local.root / handle.backend_name)} == {0o700}
    cache.chmod(0o755)  # as an older version left it
    local.backend.submit(local.submission())
    assert cache.stat().st_mode & 0o777 == 0o700


def test_processes_that_ignore_the_request_are_killed(local: LocalCase) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PROGRAM
    local.use(stubborn)
    handle = local.backend.submit(local.submission())
    wait_until(lambda: local.starts(handle) == 1, "it has started")
    local.backend.cancel(handle)
    local.until(handle, Presence.FINISHED)
    assert local.observe(handle).exit_status == -signal.SIGKILL


def test_a_killed_shim_takes_its_processes_along_and_is_never_started_again(local: LocalCase) -> None:
    submission = local.submission()
    handle = local.backend.submit(submission)
    wait_until(lambda: local.starts(handle) == 1, "it has started")
    shim = local.shim_of(handle)
    children = shim.children()
    assert children
    shim.kill()
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    local.until(handle, Presence.FINISHED)
    assert local.observe(handle).native_state == "vanished"
    assert local.backend.submit(submission) == handle
    assert local.observe(handle).presence is Presence.FINISHED
    assert local.starts(handle) == 1


def test_processes_get_no_variable_but_the_named_ones(
    local: LocalCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgres://planted")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    handle = local.backend.submit(local.submission())
    wait_until(lambda: local.starts(handle) == 1, "it has started")
    (process,) = local.shim_of(handle).children()
    environment = process.environ()
    local.finish(handle)
    assert environment["ATHANOR_ATTEMPT_TOKEN"] == "planted-secret"
    assert "planted" not in {environment.get("DATABASE_URL"), environment.get("AWS_SECRET_ACCESS_KEY")}
    assert "planted-secret" not in " ".join(process.cmdline() if process.is_running() else [])


def test_a_program_that_is_not_there_is_an_end_with_words(local: LocalCase) -> None:
    local.backend = LocalBackend(str(local.root), command=("/nowhere/python",))
    handle = local.backend.submit(local.submission())
    local.until(handle, Presence.FINISHED)
    assert local.observe(handle).exit_status == 127
    assert "/nowhere/python" in local.observe(handle).native_reason


def test_used_slots_are_those_of_running_attempts(local: LocalCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (50.0, 50.0, 50.0))  # a busy machine, busy with something else

    def used() -> int:
        (node,) = local.backend.nodes()
        return node.slots_used

    assert used() == 0
    one, other = (local.backend.submit(local.submission(processes_per_node=count)) for count in (1, 2))
    assert used() == 3
    local.finish(other)
    local.until(other, Presence.FINISHED)
    assert used() == 1
    local.finish(one)
    local.until(one, Presence.FINISHED)
    assert used() == 0
