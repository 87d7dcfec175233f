"""Batches that are computed in other processes give the results of this one, in order, and errors end them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.runs import tiny_text, tiny_training
from trainer.data_report import processes, report
from trainer.data_report.processes import Pipeline
from trainer.data_report.report import ReportOptions
from trainer.errors import TrainerError
from trainer.standalone.data_report import report_on_files

pytestmark = pytest.mark.processes


def with_pid(offset: int) -> Callable[[int], tuple[int, int]]:
    return lambda batch: (10 // (batch + offset), os.getpid())


def test_results_are_in_order_and_the_first_are_computed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BATCHES_HERE", 2)
    with Pipeline[int, tuple[int, int]](with_pid, 1, processes=2) as pipeline:
        found = list(pipeline.map(range(20)))
        children = {pid for _, pid in found[2:]}
    assert [value for value, _ in found] == [10 // (number + 1) for number in range(20)]
    assert {pid for _, pid in found[:2]} == {os.getpid()}
    assert os.getpid() not in children and 1 <= len(children) <= 2
    assert not any(is_running(pid) for pid in children)


def test_an_error_and_the_end_of_a_process_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "BATCHES_HERE", 0)
    with (
        pytest.raises(ZeroDivisionError),
        Pipeline[int, tuple[int, int]](with_pid, -3, processes=2) as pipeline,
    ):
        list(pipeline.map(range(9)))
    with (
        pytest.raises(TrainerError, match="ended unexpectedly"),
        Pipeline[int, None](ending, processes=2) as ended,
    ):
        list(ended.map(range(9)))


def ending() -> Callable[[int], None]:
    return lambda batch: os._exit(9) if batch == 5 else None


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_report_by_processes_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(tiny_text(300_000))
    training = tiny_training(data={"source": "dataset:rows", "packing": "documents"})
    here = report_on_files(training, [path], ReportOptions())
    monkeypatch.setattr(processes, "BATCHES_HERE", 0)
    monkeypatch.setattr(report, "BATCH_CHARACTERS", 20_000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert report_on_files(training, [path], ReportOptions()).digest == here.digest
