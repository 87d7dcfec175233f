"""New work is refused in time, and with the right words, when a disk of the platform is full; running jobs continue."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import InternalError, OperationalError
from django.test import Client

from athanor.api import errors, site
from athanor.core import disks
from athanor.core.errors import Unavailable
from athanor.dispatch import tokens
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.api.test_agent import AgentClient
from tests.control_plane.conftest import Api
from tests.small_disk import SmallDisk, small_disk

NOW = datetime(2026, 1, 1, tzinfo=UTC).isoformat()


@pytest.fixture
def disk(tmp_path: Path, settings: Any) -> Iterator[SmallDisk]:
    """A disk of 4 MiB, of which 1 MiB is reserved."""
    with small_disk(tmp_path / "disk", "4m") as made:
        settings.ATHANOR = settings.ATHANOR.model_copy(update={"disks": str(made.path), "disk_reserve_mib": 1})
        yield made


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch, bucket: str) -> Callable[[], tuple[int, str]]:
    def ask() -> tuple[int, str]:
        monkeypatch.setattr(site, "_readiness", site._Readiness())
        answer = Client().get("/readyz")
        return answer.status_code, answer.json()["checks"]["disk"]

    return ask


@pytest.mark.django_db
def test_a_submit_is_refused_until_there_is_room_and_what_runs_can_be_stopped(
    disk: SmallDisk, api: Api, submit: Callable[..., Job], spec: dict[str, Any], ready: Callable
) -> None:
    job = drive.start(submit()).job
    assert ready() == (200, "ok")
    disk.fill()
    assert ready() == (503, "unavailable")
    answer = api.send("POST", "jobs", spec)
    assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")
    assert answer.json()["detail"].startswith(f"the disk of {disk.path} has 0 MiB free, and 1 MiB are reserved")
    assert "free space on that disk" in answer.json()["remedy"]
    assert api.send("POST", f"jobs/{job.id}:cancel").status_code < 300
    disk.free()
    assert ready() == (200, "ok")
    assert api.send("POST", "jobs", spec).status_code == 201


@pytest.mark.django_db
def test_an_agent_keeps_its_metrics_and_reports_what_happens(
    disk: SmallDisk, submit: Callable[..., Job], bucket: str
) -> None:
    attempt = drive.start(submit())
    agent = AgentClient(tokens.issue(attempt.id))
    points = {"writer": "w", "sequence": 0, "points": [{"step": 1, "time": NOW, "values": {"train/loss": 2.0}}]}
    lines = {"writer": "l", "sequence": 0, "lines": [{"time": NOW, "rank": 0, "stream": "stdout", "text": "hello"}]}
    happened = {"writer": "p", "sequence": 0, "events": [{"time": NOW, "type": "phase.finished", "data": {}}]}

    def statuses() -> list[int]:
        return [agent("POST", kind, body).status_code for kind, body in (("metrics", points), ("logs", lines))]

    disk.fill()
    assert statuses() == [503, 503]
    assert agent("POST", "progress", happened).status_code == 200
    disk.free()
    assert statuses() == [200, 200]


@pytest.mark.django_db
def test_a_data_set_is_refused_before_it_is_read(disk: SmallDisk, api: Api, bucket: str) -> None:
    disk.fill()
    answer = api.generic("POST", "/api/v1/datasets?name=words&team=red", "some words", content_type="text/plain")
    assert (answer.status_code, answer.json()["code"]) == (503, "disk_full")


def test_a_read_only_disk_is_named(disk: SmallDisk) -> None:
    disks.require_writable()
    disk.set_read_only(True)
    with pytest.raises(Unavailable, match="is read-only"):
        disks.require_space()
    disk.set_read_only(False)
    disks.require_writable()


def test_a_disk_without_inodes_is_named(tmp_path: Path, settings: Any) -> None:
    with small_disk(tmp_path / "disk", "8m,nr_inodes=900") as made:
        settings.ATHANOR = settings.ATHANOR.model_copy(update={"disks": str(made.path), "disk_reserve_mib": 1})
        with pytest.raises(Unavailable, match=r"has \d+ inodes free, and 1000 are reserved"):
            disks.require_space()


def test_a_folder_that_is_gone_is_named(tmp_path: Path, settings: Any) -> None:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"disks": f"{tmp_path}, {tmp_path}/gone"})
    with pytest.raises(Unavailable, match=r"gone cannot be read: No such file"):
        disks.require_space()


def raised(error: Exception, cause: Exception) -> Any:
    error.__cause__ = cause
    return errors.handle(error, {})


def test_a_database_that_stopped_for_a_full_disk_is_not_said_to_be_silent(disk: SmallDisk) -> None:
    refused = OperationalError("connection refused"), psycopg.OperationalError()
    assert raised(*refused).data["code"] == "database_unavailable"
    disk.fill()
    assert raised(*refused).data["code"] == "disk_full"
    disk.free()
    answer = raised(OperationalError("could not extend file"), psycopg.errors.DiskFull())
    assert (answer.status_code, answer.data["code"], answer["Retry-After"]) == (503, "disk_full", "2")
    answer = raised(InternalError("read-only"), psycopg.errors.ReadOnlySqlTransaction())
    assert (answer.status_code, answer.data["code"]) == (503, "database_read_only")
