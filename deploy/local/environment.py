"""Which servers are embedded and which are external, and the environment of the platform's processes."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.local import secret_values, valkey
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json
from deploy.local.postgres import Postgres

BUCKET = "athanor"
REGION = "us-east-1"
REPOSITORY = Path(__file__).resolve().parents[2]
# Read here, by the Makefile or by the command line client: the server refuses ATHANOR_ names it does not know.
NOT_FOR_THE_SERVER = {
    "ATHANOR_DATA_DIR", "ATHANOR_PORT", "ATHANOR_TORCH", "ATHANOR_URL", "ATHANOR_TOKEN",
    "ATHANOR_BOOTSTRAP_PASSWORD",
}  # fmt: skip
# For `manage.py migrate` alone: what serves requests and runs jobs has no rights over the tables.
OWNER_ONLY = "ATHANOR_MIGRATION_DATABASE_URL"
S3_NAMES = ("ATHANOR_S3_ENDPOINT", "ATHANOR_S3_ACCESS_KEY", "ATHANOR_S3_SECRET_KEY", "ATHANOR_S3_BUCKET")


def with_repository_on_path(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment with the code of this repository first, whichever copy of it is installed.

    `workers`, `trainer` and `deploy` are in its root, `athanor` is below platform/.
    """
    return {**environment, "PYTHONPATH": f"{REPOSITORY / 'platform'}{os.pathsep}{REPOSITORY}"}


@dataclass(frozen=True)
class Embedded:
    """What this stack brings itself; the rest is given by the environment."""

    postgres: bool
    valkey: bool
    object_store: bool

    @classmethod
    def from_environment(cls) -> "Embedded":
        """Return which stores to embed: those that the environment does not name.

        Raises StackError if it names only a part of an S3 store.
        """
        given = [name for name in S3_NAMES if os.environ.get(name)]
        if given and len(given) < len(S3_NAMES):
            missing = ", ".join(name for name in S3_NAMES if name not in given)
            raise StackError(f"{given[0]} is set without {missing}: set all four to use your own object store, or none")
        return cls(
            postgres=not os.environ.get("DATABASE_URL"),
            valkey=not os.environ.get("CELERY_BROKER_URL"),
            object_store=not given,
        )

    def port_names(self) -> list[str]:
        """Return the names of the embedded stores that need a port."""
        return [name for name in ("postgres", "valkey", "object_store") if getattr(self, name)]


def for_platform(
    folder: DataFolder,
    embedded: Embedded,
    ports: dict[str, int],
    secrets: dict[str, str],
    postgres: Postgres | None,
) -> dict[str, str]:
    """Return the environment of manage.py; without OWNER_ONLY, of web, worker and beat too."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_THE_SERVER}
    environment.update(
        PATH=f"{Path(sys.executable).parent}:{environment.get('PATH', '/usr/bin:/bin')}",
        PYTHONUNBUFFERED="1",
        ATHANOR_PUBLIC_URL=os.environ.get("ATHANOR_PUBLIC_URL") or f"http://127.0.0.1:{ports['web']}",
        ATHANOR_LOCAL_BACKEND_DIR=str(folder.jobs),
        ATHANOR_CLUSTER_CONFIG_DIR=os.environ.get("ATHANOR_CLUSTER_CONFIG_DIR") or str(folder.clusters),
        ATHANOR_DASHBOARD_DIR=str(REPOSITORY / "frontend" / "dist"),
        ATHANOR_DOCS_DIR=str(REPOSITORY / "build" / "docs"),
    )
    environment.setdefault("ATHANOR_AUDIT_ANCHORS", f"file:{folder.root / 'audit-anchors.jsonl'}")
    environment.setdefault("ATHANOR_DISKS", str(folder.root))
    environment.setdefault("ATHANOR_SECRET_KEY", secrets["secret_key"])
    # The supervisor's own probes and the trainers on this machine come to 127.0.0.1, whatever the user adds.
    hosts = [*filter(None, os.environ.get("ATHANOR_ALLOWED_HOSTS", "").split(",")), "127.0.0.1", "localhost"]
    environment["ATHANOR_ALLOWED_HOSTS"] = ",".join(dict.fromkeys(hosts))
    if embedded.postgres:
        assert postgres is not None
        environment["DATABASE_URL"] = postgres.url
        environment["ATHANOR_MIGRATION_DATABASE_URL"] = postgres.migration_url
    if embedded.valkey:
        environment["CELERY_BROKER_URL"] = valkey.url(ports["valkey"], secrets["valkey_password"])
    if embedded.object_store:
        environment.update(
            ATHANOR_S3_ENDPOINT=f"http://127.0.0.1:{ports['object_store']}",
            ATHANOR_S3_REGION=REGION,
            ATHANOR_S3_ACCESS_KEY=secret_values.S3_ACCESS_KEY,
            ATHANOR_S3_SECRET_KEY=secrets["s3_secret_key"],
            ATHANOR_S3_BUCKET=BUCKET,
        )
    return environment


def of_running(folder: DataFolder) -> dict[str, str]:
    """Return the variables of a running stack that differ from this environment, read from its folder."""
    embedded = Embedded.from_environment()
    ports = read_json(folder.root / "ports.json") or {}
    secrets = read_json(folder.root / "secrets.json") or {}
    postgres = Postgres(folder, ports["postgres"], secrets) if embedded.postgres else None
    known = for_platform(folder, embedded, ports, secrets, postgres)
    if "master_key" in secrets:
        known.setdefault("ATHANOR_MASTER_KEY", secrets["master_key"])
    own = {"PATH", "PYTHONUNBUFFERED"}
    return {name: value for name, value in known.items() if name not in own and os.environ.get(name) != value}
