"""An OpenSSH server of one's own: its host key, its one user's key and its port are made for it."""

import contextlib
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from deploy.local.handle import wait_until
from tests.slurm.processes import die_with_parent, free_ports, listens, search_path

SETTINGS = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
PermitRootLogin prohibit-password
SetEnv {environment}
LogLevel ERROR
"""


def missing() -> str:
    """Why there can be no server here; empty when there can be."""
    absent = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=search_path()) is None]
    return f"{', '.join(absent)} not installed: as root, apt-get install openssh-server" if absent else ""


@contextlib.contextmanager
def ssh_server(folder: Path, environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The `transport` of a cluster's configuration that leads there. `environment`: what its sessions find."""
    folder.mkdir(mode=0o755)
    for name in ("host", "user", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (port,) = free_ports(1)
    settings = folder / "sshd_config"
    given = " ".join(f'{name}="{value}"' for name, value in environment.items())
    settings.write_text(SETTINGS.format(port=port, folder=folder, environment=given))
    for name in ("host", "stranger"):
        key = (folder / f"{name}.pub").read_text()
        (folder / f"known_{name}").write_text(f"[127.0.0.1]:{port} {key}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists on it
    server = subprocess.Popen(
        [str(shutil.which("sshd", path=search_path())), "-D", "-e", "-f", str(settings)],
        stdin=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
        preexec_fn=die_with_parent,
        start_new_session=True,
    )
    try:
        wait_until(lambda: listens(port), "sshd listens", 30)
        yield {
            "kind": "ssh",
            "host": "127.0.0.1",
            "port": port,
            "user": getpass.getuser(),
            "identity_file": str(folder / "user"),
            "known_hosts_file": str(folder / "known_host"),
        }
    finally:
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        server.wait(10)
