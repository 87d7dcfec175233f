"""Puts the stack together: the order of things, and the one-off work between database and web."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

from deploy.local import environment, ports, programs, secret_values, valkey
from deploy.local.environment import REPOSITORY, Embedded
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, write_json
from deploy.local.postgres import Postgres
from deploy.local.service import Service

ADMIN = "admin"
TEAM = "demo"


class Stack:
    """What runs, in two waves: the stores, then (after `prepare`) the platform's own programs."""

    def __init__(self, folder: DataFolder) -> None:
        self.folder = folder
        self._embedded = Embedded.from_environment()
        self._secrets = secret_values.load_or_make(folder)
        self.ports = ports.choose(folder, self._embedded.port_names())
        self._postgres = Postgres(folder, self.ports["postgres"], self._secrets) if self._embedded.postgres else None
        self.environment = environment.for_platform(folder, self._embedded, self.ports, self._secrets, self._postgres)
        self.url = self.environment["ATHANOR_PUBLIC_URL"]

    def add_master_key(self) -> None:
        """Needs the platform's code, which the stores alone do without."""
        if "ATHANOR_MASTER_KEY" not in self.environment:
            key = secret_values.load_or_make_master_key(self.folder, REPOSITORY, self.environment)
            self.environment["ATHANOR_MASTER_KEY"] = key

    def initialise(self) -> None:
        """What must exist before the first process starts."""
        self.folder.check_space()
        self._check_attributes()
        if self._postgres is not None:
            self._postgres.initialise()

    def stores(self) -> list[Service]:
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
        if self._postgres is not None:
            self._postgres.ensure_database()

    def prepare(self, say: Callable[[str], None]) -> None:
        """Bring the database up to date; make the first admin, team and token. All of it may be repeated."""
        say("database: applying migrations")
        self._manage("migrate", "--no-input")
        answer = self._manage("bootstrap", "--username", ADMIN, "--team", TEAM)
        try:
            credentials = json.loads(answer)
        except ValueError as error:
            raise StackError("`manage.py bootstrap` did not answer in JSON", answer) from error
        write_json(self.folder.credentials, {**credentials, "url": self.url})

    def platform(self) -> list[Service]:
        return [
            programs.web(self.folder, self.ports["web"], self.environment),
            programs.worker(self.folder, self.environment),
            programs.beat(self.folder, self.environment),
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
        """The object store keeps what it knows of an object in the file's extended attributes."""
        if not self._embedded.object_store:
            return
        try:
            os.setxattr(self.folder.objects, "user.athanor", b"1")
        except OSError as error:
            raise StackError(
                f"the file system of {self.folder.root} keeps no extended attributes ({error.strerror}): "
                "set ATHANOR_DATA_DIR to a folder on ext4, xfs, btrfs or overlayfs"
            ) from error
