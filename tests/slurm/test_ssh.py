"""Slurm's commands through a real SSH server."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from athanor.backends.base import BackendUnavailable, Phase, Presence
from athanor.backends.slurm.config import SshTransport
from athanor.backends.slurm.transport import Deadline, SshShell
from deploy.local.handle import wait_until
from tests.backends.cases.slurm import SlurmCase


def test_an_attempt_runs_is_stopped_and_tells_its_end(slurm_ssh: SlurmCase) -> None:
    submission = slurm_ssh.submission()
    handle = slurm_ssh.backend.submit(submission)
    assert slurm_ssh.backend.submit(submission) == handle
    wait_until(
        lambda: slurm_ssh.observe(handle).phase is Phase.RUNNING and slurm_ssh.starts(handle) == 1, "it runs", 30
    )
    wait_until(lambda: "hello from the program \u00e9" in slurm_ssh.backend.logs(handle).text, "it has written", 30)
    assert slurm_ssh.backend.list_ours() == {handle.backend_name}
    slurm_ssh.backend.cancel(handle)
    assert slurm_ssh.until(handle, Presence.FINISHED).exit_status == -15
    assert slurm_ssh.backend.check_health().is_usable


def test_one_connection_serves_all_calls(ssh_server: dict[str, Any]) -> None:
    shell = SshShell(SshTransport(**ssh_server))
    for _ in range(3):
        assert shell.run("echo $((6 * 7))", Deadline()) == b"42\n"
    command = shell.command()
    asked = [*command[: command.index("--")], "-O", "check", ssh_server["host"]]
    assert "Master running" in subprocess.run(asked, capture_output=True, text=True, check=False).stderr


def test_another_host_key_is_refused(ssh_server: dict[str, Any]) -> None:
    stranger = Path(ssh_server["known_hosts_file"]).with_name("known_stranger")
    # Under another name there is no connection that is kept already.
    shell = SshShell(SshTransport(**{**ssh_server, "known_hosts_file": str(stranger), "host": "localhost"}))
    with pytest.raises(BackendUnavailable, match="ssh to localhost"):
        shell.run("echo here", Deadline())
