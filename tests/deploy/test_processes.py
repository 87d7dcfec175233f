"""The launcher and the identity of processes: what the supervisor's promises rest on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.handle import wait_until
from deploy.local.processes import ProcessIdentity
from deploy.local.service import LAUNCHER


def launched(*options: str, command: list[str]) -> list[str]:
    return [sys.executable, "-I", "-S", str(LAUNCHER), *options, "--", *command]


def test_a_service_ends_with_the_process_that_launched_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    service = launched("--parent=PARENT", command=["/bin/sh", "-c", f"echo $$ > {pid_file}; exec sleep 600"])
    program = (
        "import os, subprocess, sys\n"
        "command = [word.replace('PARENT', str(os.getpid())) for word in sys.argv[1:]]\n"
        "subprocess.Popen(command).wait()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, *service])
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip(), "the service runs", 20)
    identity = ProcessIdentity.of(int(pid_file.read_text()))
    assert identity is not None
    parent.kill()
    parent.wait()
    wait_until(lambda: not identity.is_alive(), "the service has ended", 20)


def test_a_service_whose_launcher_has_gone_never_starts() -> None:
    result = subprocess.run(launched("--parent=1", command=["/bin/echo", "ran"]), capture_output=True, text=True)
    assert result.returncode != 0
    assert result.stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root steps down")
def test_root_steps_down_and_still_reaches_programs_below_a_closed_folder(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    program = closed / "program"
    program.write_text('#!/bin/sh\nid -u\ntest -x "$0" && echo reachable\ntouch /athanor-test && echo could write\n')
    program.chmod(0o755)
    closed.chmod(0o700)
    result = subprocess.run(
        launched("--user=nobody", command=[str(program)]), capture_output=True, text=True, check=False
    )
    assert result.stdout.splitlines()[1:] == ["reachable"], result.stderr
    assert int(result.stdout.splitlines()[0]) != 0


def test_a_pid_that_belongs_to_another_process_now_is_not_taken_for_the_old_one() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        assert identity.is_alive()
        stranger = ProcessIdentity(identity.pid, identity.started - 1)
        assert not stranger.is_alive()
        stranger.stop(signal.SIGKILL, 1.0)
        assert process.poll() is None
        identity.stop(signal.SIGTERM, 10.0)
        process.wait(10)
    assert not identity.is_alive()
    assert ProcessIdentity.of(process.pid) != identity
