"""Log lines: as JSON each is one object, with the ids of the work that wrote it."""

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from athanor.accounts.failures import run_isolated
from athanor.api.v1.jobs import JobView
from athanor.core import task_triggers
from athanor.core.leases import Lease
from athanor.core.logging import JsonFormatter, bound
from athanor.jobs.models import Job

pytestmark = pytest.mark.django_db


class Lines(logging.Handler):
    """Records as JSON, parsed."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self.found: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        assert "\n" not in line
        self.found.append(json.loads(line))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def test_a_line_has_the_ids_and_an_exception_stays_on_it(lines: Lines) -> None:
    with bound(request="req_1", job="job_1", task="athanor.admit"):
        try:
            int('two\nlines and a "quote"')
        except ValueError:
            logging.getLogger("athanor.test").exception("it %s", "failed")
    (line,) = lines.found
    assert (line["level"], line["logger"], line["message"]) == ("ERROR", "athanor.test", "it failed")
    assert (line["request_id"], line["job_id"], line["task"]) == ("req_1", "job_1", "athanor.admit")
    assert "two" in line["exception"]
    assert "\n" in line["exception"]
    assert line["time"].endswith("+00:00")


def test_a_request_names_the_job_of_its_address(
    lines: Lines, api: Any, submit: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit()

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(JobView, "get", fail)
    answer = api.send("GET", f"jobs/{job.id}")
    line = next(line for line in lines.found if line["message"] == "unexpected error")
    assert (line["job_id"], line["request_id"]) == (job.id, answer.json()["request_id"])
    assert "ZeroDivisionError" in line["exception"]


def test_background_work_names_its_row(lines: Lines, submit: Callable[..., Job]) -> None:
    job = submit()

    def fail() -> None:
        raise ZeroDivisionError

    run_isolated(task_triggers.FINALISE, f"finalising job {job.id}", fail, held=(Job, Lease(job.id, uuid.uuid4())))
    line = next(line for line in lines.found if "ZeroDivisionError" in line.get("exception", ""))
    assert (line["job_id"], line["work"]) == (job.id, f"finalising job {job.id}")
