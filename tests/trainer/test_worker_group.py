"""Real processes that fail together: the group names the one that failed first by itself."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.runs import platform_run, tiny_training
from trainer.agent import worker_group
from trainer.agent.logs import LogFollower
from trainer.agent.worker_group import Outcome, WorkerGroup
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.reporting.spool import SpoolWriter
from trainer.resilience.assignment import Assignment, HttpConnection
from trainer.resilience.failures import classify_exception, write_failure
from trainer.resilience.store_server import StoreAddress

ECC = "CUDA error: uncorrectable ECC error encountered"


def fail(assignment: Assignment, message: str) -> None:
    """Report an error, as a worker does, and end."""
    failure = classify_exception(RuntimeError(message), assignment.rank)
    write_failure(assignment.failures, failure)
    sys.exit(EXIT_STATUS[failure.end_class])


def abort_as_its_watchdog_does(assignment: Assignment) -> None:
    if assignment.rank == 0:
        fail(assignment, "Connection closed by peer [127.0.0.1]:1")
    sys.stderr.write(f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {ECC}\n")
    sys.stderr.flush()
    os.abort()


def report_the_fault_last(assignment: Assignment) -> None:
    if assignment.rank == 0:
        fail(assignment, "confused by the loss")
    while not (assignment.failures / "rank-0.json").exists():
        time.sleep(0.01)  # until the other rank has reported
    fail(assignment, ECC)


def lose_each_other(assignment: Assignment) -> None:
    fail(assignment, "Connection closed by peer [127.0.0.1]:1")


def exit_before_the_end(assignment: Assignment) -> None:
    """As a library that calls exit(0): of the first rank, while the other one waits for it."""
    if assignment.rank == 0:
        os._exit(0)
    threading.Event().wait()


def outcome_of(work: Callable[[Assignment], None], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Return how a group of two processes that do this ends."""
    nothing: Any = None  # what is tested here does not ask for it
    run, _, _ = platform_run(tiny_training(), processes=2)
    first = Assignment(
        run=run, training=nothing, job_key="k", connection=HttpConnection("http://127.0.0.1:1", "t"),
        restart_count=0, rank=0, local_rank=0, store=StoreAddress("127.0.0.1", 0), sources=[], work=folder, stamp="s",
        model_folder=None,
    )  # fmt: skip
    monkeypatch.setattr(worker_group, "run_worker", work)
    follower = LogFollower(SpoolWriter(folder / "spool", "logs", "agent0"))
    group = WorkerGroup([first, replace(first, rank=1, local_rank=1)], follower, print)
    return group.watch(lambda: None, lambda: False, lambda: False)


@pytest.mark.parametrize(
    ("work", "end_class", "words"),
    [
        (abort_as_its_watchdog_does, EndClass.GPU_FAULT, "rank 1 aborted: what():  CUDA error: uncorrectable ECC"),
        (report_the_fault_last, EndClass.GPU_FAULT, f"rank 1: RuntimeError: {ECC}"),
        (lose_each_other, EndClass.COLLECTIVE_TIMEOUT, "Connection closed by peer"),
        (exit_before_the_end, EndClass.INTERNAL_ERROR, "rank 0 exited with status 0 without a report"),
    ],
)
def test_the_first_cause_ends_the_group(
    work: Callable[[Assignment], None], end_class: EndClass, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = outcome_of(work, tmp_path, monkeypatch)
    assert outcome.end_class is end_class
    assert words in outcome.message
    if work is abort_as_its_watchdog_does:
        assert outcome.exit_codes["rank-1"] == -signal.SIGABRT
