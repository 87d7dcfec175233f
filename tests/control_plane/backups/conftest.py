"""An installation with something of everything that a backup must contain, and another one to restore into."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.db.utils import load_backend

from athanor.accounts.models import Team, User
from athanor.artifacts import signing_keys, storage, team_secrets
from athanor.artifacts.models import Artifact, Checkpoint, Dataset
from athanor.backends.fake.backend import World
from athanor.backups import manifest
from athanor.backups.destination import open_destination
from athanor.jobs.models import Job
from deploy.local.postgres import OWNER
from tests import stores
from tests.control_plane import drive
from tests.control_plane.artifacts.test_base_models import finished_model
from tests.control_plane.artifacts.test_datasets import upload
from tests.control_plane.artifacts.test_manifests import registered
from tests.control_plane.conftest import Api

UPLOADED = b"a text of the team\n" * 50


@dataclass(frozen=True)
class Installation:
    """A finished model, a running job with a checkpoint, an upload, a secret and a signing key."""

    model: Artifact
    running: Job
    checkpoint: Checkpoint
    upload: Dataset


@pytest.fixture
def installation(
    submit: Callable[..., Job], api: Api, user: User, team: Team, world: World, bucket: str
) -> Installation:
    model, _ = finished_model(submit)
    running = submit(name="running")
    checkpoint = registered(drive.run(running), 10)
    made = upload(api, UPLOADED)
    assert made.status_code == 201, made.content
    team_secrets.put(team, "TOKEN", "a secret of the team", user)
    signing_keys.sign(model, user)
    return Installation(model, running, checkpoint, Dataset.objects.get(pk=made.json()["id"]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backups"


@pytest.fixture
def backed_up(installation: Installation, place: Path) -> Path:
    """A place with a backup of the installation."""
    assert "is complete" in back_up(place)
    return place


@dataclass(frozen=True)
class Elsewhere:
    """An empty database and the name of a bucket that does not exist yet."""

    database: str
    bucket: str


@pytest.fixture
def elsewhere(transactional_db: None, settings: Any) -> Iterator[Elsewhere]:
    """Make an empty database, which `entered` makes the default one, and remove it at the end."""
    made = Elsewhere(f"athanor_elsewhere_{uuid.uuid4().hex[:8]}", f"elsewhere-{uuid.uuid4().hex[:8]}")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {made.database}")
    yield made
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {made.database} WITH (FORCE)")


@contextmanager
def entered(elsewhere: Elsewhere, settings: Any) -> Iterator[None]:
    """Let the platform's code in this process use the other database and the other bucket."""
    before, environment = connections["default"], settings.ATHANOR
    options = {name: value for name, value in before.settings_dict["OPTIONS"].items() if name != "pool"}
    other = {**before.settings_dict, "NAME": elsewhere.database, "OPTIONS": options}
    connections["default"] = load_backend(other["ENGINE"]).DatabaseWrapper(other, "default")
    settings.ATHANOR = environment.model_copy(update={"s3_bucket": elsewhere.bucket})
    try:
        yield
    finally:
        connections["default"].close()
        connections["default"] = before
        settings.ATHANOR = environment


def objects_of(bucket: str) -> dict[str, bytes | None]:
    """Return the content of every object of a bucket, by its key."""
    prefix = f"s3://{bucket}/"
    return {item.key.removeprefix(prefix): storage.get(item.key) for item in storage.listing(prefix)}


def back_up(place: Path | str, *options: str) -> str:
    """Make a backup as an operator does. Return what is printed."""
    printed = StringIO()
    call_command("backup", str(place), *options, stdout=printed, stderr=printed)
    return printed.getvalue()


def table_rows(place: Path, table: str) -> int:
    """Return how many rows of a table the newest backup has."""
    opened = manifest.open_backup(open_destination(str(place)))
    return next(each.rows for each in opened.manifest.tables if each.name == table)


def in_another_session(work: Callable[[], Any]) -> Any:
    """Run in a thread, which has a database session of its own."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def superuser(statement: str) -> None:
    database = connection.settings_dict
    password = stores.secret("database_owner_password")
    with psycopg.connect(
        host=database["HOST"], port=database["PORT"], dbname=database["NAME"], user=OWNER, password=password,
        autocommit=True,
    ) as session:  # fmt: skip
        session.execute(statement)
