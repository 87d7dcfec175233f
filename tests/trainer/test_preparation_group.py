"""Several processes prepare the units of a data set, and make of it what one makes."""

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.trainer.runs import run_alone, tiny_text, tiny_training
from trainer.agent import dataset, preparation_group
from trainer.agent.unit_workers import UnitsTask
from trainer.contract.run import EndClass


def written(folder: Path, texts: list[str]) -> list[Path]:
    paths = [folder / f"{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def prepared_files(output: Path) -> dict[str, bytes]:
    (folder,) = (path for path in (output / "work" / "datasets").iterdir() if path.is_dir())
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_group_makes_what_one_process_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tiny_text()
    files = written(tmp_path, [text[start : start + 9_000] for start in range(0, len(text), 9_000)])
    monkeypatch.setattr(dataset, "UNIT_BYTES", 9_000)
    found = []
    for name, processes in (("group", True), ("alone", False)):
        if not processes:
            monkeypatch.setattr(dataset, "NodeProcesses", lambda *arguments: None)
            monkeypatch.setattr("trainer.agent.supervisor.NodeProcesses", lambda *arguments: None)
        run = run_alone(tmp_path / name, tiny_training(steps=5), files=files)
        assert run.end_class is EndClass.COMPLETED, run.end
        found.append(prepared_files(run.output))
    assert found[0] == found[1]
    assert len([name for name in found[0] if name.startswith("train-")]) >= 6


def end_by_signal(task: UnitsTask, report: Connection) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_of_a_group_ends_the_run_with_its_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "UNIT_BYTES", 1)
    monkeypatch.setattr(preparation_group, "take_units", end_by_signal)
    files = written(tmp_path, [tiny_text()] * 2)
    run = run_alone(tmp_path / "killed", tiny_training(steps=5), files=files)
    assert run.end_class is EndClass.PROCESS_KILLED
    assert "a process that prepared the data ended: " in run.end["message"]
    assert "SIGKILL" in run.end["message"]
