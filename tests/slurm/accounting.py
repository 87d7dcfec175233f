"""A MariaDB and a slurmdbd of one's own, for a cluster that remembers its jobs (mariadb-server and slurmdbd)."""

import contextlib
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.local.handle import wait_until
from tests.slurm.processes import die_with_parent, free_ports, listens, search_path

PROGRAMS = ("mariadbd", "mariadb", "mariadb-install-db", "slurmdbd", "sacctmgr")

CONFIGURATION = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost=localhost
DbdPort={port}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm
"""


def missing() -> str:
    """Why there can be no accounting here; empty when there can be."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    return f"{', '.join(absent)} not installed: as root, apt-get install slurmdbd mariadb-server" if absent else ""


@dataclass(frozen=True)
class Accounting:
    """`configuration`: what slurm.conf says of it."""

    port: int
    munge_socket: Path

    @property
    def configuration(self) -> str:
        return (
            "JobCompType=jobcomp/none\nAccountingStorageType=accounting_storage/slurmdbd\n"
            f"AccountingStorageHost=localhost\nAccountingStoragePort={self.port}\n"
            f"AccountingStoragePass={self.munge_socket}\n"
        )

    def wait(self, run: Callable[..., str]) -> None:
        """Until it answers; it then knows the cluster, and its administrator's account."""
        said: list[str] = []

        def answers() -> bool:
            try:
                said.append(run("sacctmgr", "--noheader", "--parsable2", "list", "account", "format=Account"))
            except AssertionError as error:
                said.append(str(error))
            return "root" in said[-1].split()

        try:
            wait_until(answers, "slurmdbd answers", 30)
        except AssertionError as error:
            error.add_note(said[-1])
            raise
        run("sacctmgr", "--immediate", "--quiet", "add", "cluster", "athanortest")
        run("sacctmgr", "--immediate", "--quiet", "add", "account", "everyone")
        run("sacctmgr", "--immediate", "--quiet", "add", "user", "root", "Account=everyone", check=False)


@contextlib.contextmanager
def accounting(folder: Path) -> Iterator[Accounting]:
    """The database runs while this lasts; the cluster starts slurmdbd itself, since it needs the cluster's munge."""
    data = folder / "database"
    subprocess.run(
        ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db",
         "--auth-root-authentication-method=normal"],
        check=True, capture_output=True,
    )  # fmt: skip
    port, database_port = free_ports(2)
    password = secrets.token_hex(16)
    socket = folder / "database.sock"
    with (folder / "database.log").open("wb") as log:
        server = subprocess.Popen(
            [str(shutil.which("mariadbd", path=search_path())), "--no-defaults", "--user=root", f"--datadir={data}",
             f"--socket={socket}", f"--port={database_port}", "--bind-address=127.0.0.1",
             f"--pid-file={folder}/database.pid", "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(lambda: listens(database_port), "the database listens", 60)
        statements = (
            f"CREATE DATABASE slurm; CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{password}';"
            f"CREATE USER slurm@localhost IDENTIFIED BY '{password}';"
            "GRANT ALL ON slurm.* TO slurm@'127.0.0.1'; GRANT ALL ON slurm.* TO slurm@localhost;"
        )
        subprocess.run(["mariadb", f"--socket={socket}", "--user=root"], input=statements, text=True, check=True)
        file = folder / "slurmdbd.conf"
        file.touch(mode=0o600)
        file.write_text(CONFIGURATION.format(folder=folder, port=port, database_port=database_port, password=password))
        yield Accounting(port, folder / "munge" / "socket")
    finally:
        server.terminate()
        server.wait(30)
