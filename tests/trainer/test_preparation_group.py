"""Several processes prepare the units of a data set, and make of it what one makes."""

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.trainer.runs import run_alone, tiny_text, tiny_training
from trainer.agent import dataset, node_servers, preparation_group
from trainer.agent.unit_workers import UnitsTask
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.resilience import progress
from trainer.resilience.forking import ForkedProcess, fork, fork_server_pid
from trainer.resilience.store_server import StoreAddress, start_store


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
    assert run.end["message"] == "a process that prepared the data was killed by SIGKILL"


def send_to_store(monkeypatch: pytest.MonkeyPatch, signal_number: int, *, to_fork_server: bool = False) -> None:
    """Send a signal to the store of a preparation, or to its fork server, before the group starts."""

    def start_and_send(host: str, num_ranks: int) -> tuple[ForkedProcess, StoreAddress]:
        store, address = start_store(host, num_ranks)
        os.kill(fork_server_pid() if to_fork_server else store.process.pid, signal_number)
        return store, address

    monkeypatch.setattr(node_servers, "start_store", start_and_send)


def running() -> list[str]:
    """The processes of a preparation."""
    return [process.name for process in multiprocessing.active_children() if process.name.startswith("prepare-")]


@pytest.mark.parametrize("to_fork_server", [True, False], ids=["fork server", "store"])
def test_a_group_does_not_wait_for_a_store_that_ended_before_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_fork_server: bool
) -> None:
    """If the fork server was killed, the processes of the group start from the next one."""
    monkeypatch.setattr(dataset, "UNIT_BYTES", 1)
    send_to_store(monkeypatch, signal.SIGKILL, to_fork_server=to_fork_server)
    run = run_alone(tmp_path / "killed", tiny_training(steps=5), files=written(tmp_path, [tiny_text()] * 2))
    assert run.end_class is EndClass.PROCESS_KILLED
    assert run.end["message"] == "the process of the rendezvous store was killed"
    assert not running()


def test_a_group_does_not_wait_for_a_store_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "UNIT_BYTES", 1)
    monkeypatch.setattr(progress, "HANG_SECONDS", 3.0)
    send_to_store(monkeypatch, signal.SIGSTOP)
    run = run_alone(tmp_path / "stopped", tiny_training(steps=5), files=written(tmp_path, [tiny_text()] * 2))
    assert run.end_class in (EndClass.PROCESS_KILLED, EndClass.NETWORK_ERROR)  # of the store, or of what lost it
    (stalled,) = run.events("progress.stalled")
    assert (stalled["because"], stalled["phase"]) == (
        "the rendezvous store is stopped (SIGSTOP, or a debugger)", "data",
    )  # fmt: skip
    assert not running()


def test_a_group_that_cannot_start_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fork_first(name: str, *arguments: object) -> ForkedProcess:
        if name != "prepare-0":
            raise TrainerError(EndClass.PROCESS_KILLED, f"the fork server was killed while it started {name}")
        return fork(name, *arguments)

    monkeypatch.setattr(dataset, "UNIT_BYTES", 1)
    monkeypatch.setattr(preparation_group, "fork", fork_first)
    run = run_alone(tmp_path / "killed", tiny_training(steps=5), files=written(tmp_path, [tiny_text()] * 2))
    assert run.end_class is EndClass.PROCESS_KILLED
    assert not running()
