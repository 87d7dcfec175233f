"""Puts the stack together: the order of things, and the one-off work between database and web."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus

from deploy.local import environment, ports, programs, secret_values, valkey
from deploy.local.environment import REPOSITORY, Embedded
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json, write_json
from deploy.local.postgres import Postgres
from deploy.local.service import Service

ADMIN = "admin"
TEAM = "demo"
CHECK_SECONDS = 20.0


class Stack:
    """What runs, in two waves: the stores, then (after `prepare`) the platform's own programs."""

    def __init__(self, folder: DataFolder) -> None:
        self.folder = folder
        self._embedded = Embedded.from_environment()
        self._secrets = secret_values.load_or_make(folder)
        self.ports, self._web_socket = ports.choose(folder, self._embedded.port_names())
        self._postgres = Postgres(folder, self.ports["postgres"], self._secrets) if self._embedded.postgres else None
        self.environment = environment.for_platform(folder, self._embedded, self.ports, self._secrets, self._postgres)
        self.url = self.environment["ATHANOR_PUBLIC_URL"]

    def add_master_key(self) -> None:
        """Needs the platform's code, which the stores alone do without."""
        if "ATHANOR_MASTER_KEY" not in self.environment:
            key = secret_values.load_or_make_master_key(self.folder, REPOSITORY, self.environment)
            self.environment["ATHANOR_MASTER_KEY"] = key

    def initialise(self) -> None:
        """Create and check what must exist before the first process starts."""
        self.folder.check_space()
        self.folder.clear_metrics()
        self._check_attributes()
        if self._postgres is not None:
            self._postgres.initialise()

    def stores(self) -> list[Service]:
        """Return the embedded stores as services."""
        services = []
        if self._postgres is not None:
            services.append(self._postgres.service())
        if self._embedded.valkey:
            services.append(valkey.service(self.folder, self.ports["valkey"], self._secrets["valkey_password"]))
        if self._embedded.object_store:
            services.append(
                programs.object_store(self.folder, self.ports["object_store"], self._secrets["s3_secret_key"])
            )
        return services

    def ensure_database(self) -> None:
        """Create roles and database where PostgreSQL is embedded."""
        if self._postgres is not None:
            self._postgres.ensure_database()

    def prepare(self, say: Callable[[str], None]) -> None:
        """Bring the database up to date, and make the first admin, team and token when there are none."""
        say("database: applying migrations")
        self._manage("migrate", "--no-input")
        if not self.folder.credentials.exists():
            self._bootstrap()

    def check_credentials(self) -> None:
        """Make a new token when the server no longer takes the stored one: it was revoked, or the database changed.

        Not at every start: a new token would lock out users who have logged in with the old one.
        """
        known = read_json(self.folder.credentials)
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['web']}/api/v1/jobs?limit=1",
            headers={"Authorization": f"Bearer {known['token']}"},
        )
        try:
            urllib.request.urlopen(request, timeout=CHECK_SECONDS).close()  # noqa: S310 - likewise
        except urllib.error.HTTPError as error:
            if error.code not in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise StackError(f"the web answers {error.code} to its own first request: see its log") from error
            self._bootstrap()
        except OSError as error:
            raise StackError(f"the web does not answer its own first request ({error}): see its log") from error
        else:
            write_json(self.folder.credentials, {**known, "url": self.url})

    def _bootstrap(self) -> None:
        answer = self._manage("bootstrap", "--username", ADMIN, "--team", TEAM)
        try:
            credentials = json.loads(answer)
        except ValueError as error:
            raise StackError("`manage.py bootstrap` did not answer in JSON", answer) from error
        write_json(self.folder.credentials, {**credentials, "url": self.url})

    def platform(self) -> list[Service]:
        """Return web, worker and beat as services."""
        runtime = {name: value for name, value in self.environment.items() if name != environment.OWNER_ONLY}
        runtime["PROMETHEUS_MULTIPROC_DIR"] = str(self.folder.metrics)
        return [
            *programs.web(self.folder, self._web_socket, runtime),
            programs.worker(self.folder, runtime),
            programs.beat(self.folder, runtime),
        ]

    def _manage(self, *arguments: str) -> str:
        result = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=REPOSITORY,
            env={**self.environment, "ATHANOR_BOOTSTRAP_PASSWORD": self._secrets["admin_password"]},
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            raise StackError(f"`manage.py {arguments[0]}` failed", result.stdout + result.stderr)
        return result.stdout

    def _check_attributes(self) -> None:
        """Raise StackError if the file system has no extended attributes, in which the object store keeps metadata."""
        if not self._embedded.object_store:
            return
        try:
            os.setxattr(self.folder.objects, "user.athanor", b"1")
        except OSError as error:
            raise StackError(
                f"the file system of {self.folder.root} keeps no extended attributes ({error.strerror}): "
                "set ATHANOR_DATA_DIR to a folder on ext4, xfs, btrfs or overlayfs"
            ) from error
