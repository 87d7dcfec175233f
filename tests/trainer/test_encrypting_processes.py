"""Parts that are encrypted by processes of their own: as by this process, whatever happens to them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.handle import wait_until
from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from trainer.agent import worker_group
from trainer.agent.supervisor import Supervisor
from trainer.agent.worker_process import run_worker
from trainer.checkpoint.encrypting_processes import EncryptingProcesses
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.manifest import PART_PLAINTEXT_BYTES
from trainer.resilience.assignment import Assignment
from trainer.storage.encrypted import get_decrypted, put_pieces
from trainer.storage.folder import FolderStorage

KEY = new_keyset()


@pytest.fixture
def processes() -> Iterator[EncryptingProcesses]:
    made = EncryptingProcesses(KEY, 2)
    yield made
    made.close()


def children() -> list[int]:
    """Return the processes of this module that this process has started."""
    # not by ps, which shortens command lines to COLUMNS or the width of a terminal
    started = psutil.Process().children()
    return [each.pid for each in started if "trainer.checkpoint.encrypting_processes" in each.cmdline()]


@pytest.mark.parametrize("sizes", [[1], [0, 7, 100_000], [PART_PLAINTEXT_BYTES], [2**20, PART_PLAINTEXT_BYTES - 2**20]])
def test_what_they_encrypt_is_what_this_process_decrypts(processes: EncryptingProcesses, sizes: list[int]) -> None:
    pieces = [os.urandom(size) for size in sizes]
    ciphertext, record = processes.encrypt_pieces(map(memoryview, pieces), "a/key")
    assert Encryptor(KEY).decrypt(ciphertext, record) == b"".join(pieces)
    assert (record.key, record.plaintext_size) == ("a/key", sum(sizes))
    assert len(children()) == 2


def test_a_file_of_many_parts_is_stored_by_several_at_a_time(processes: EncryptingProcesses, tmp_path: Path) -> None:
    content = os.urandom(3 * PART_PLAINTEXT_BYTES + 5)
    storage = FolderStorage(tmp_path)
    file = put_pieces(storage, processes, "p/", "f", [memoryview(content)], len(content), in_flight=3)
    assert get_decrypted(storage, Encryptor(KEY), file) == content


def test_where_they_were_killed_this_process_encrypts(processes: EncryptingProcesses) -> None:
    processes.encrypt_pieces([memoryview(b"first")], "k")
    started = children()
    assert len(started) == 2
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    for number in range(4):
        content = os.urandom(1000 + number)
        ciphertext, record = processes.encrypt_pieces([memoryview(content)], "k")
        assert Encryptor(KEY).decrypt(ciphertext, record) == content
    assert children() == []


def test_they_encrypt_after_the_signals_that_stop_a_run(processes: EncryptingProcesses) -> None:
    for _ in range(2):  # by each of them: this process does not ignore the signals, as a rank does from its start
        processes.encrypt_pieces([memoryview(b"first")], "k")
    before = children()
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    for _ in range(2):
        ciphertext, record = processes.encrypt_pieces([memoryview(b"last")], "k")
        assert Encryptor(KEY).decrypt(ciphertext, record) == b"last"
    assert children() == before


def test_the_key_is_in_no_argument_or_variable_of_theirs(processes: EncryptingProcesses) -> None:
    processes.encrypt_pieces([memoryview(b"x")], "k")
    started = children()
    assert len(started) == 2
    for pid in started:
        for name in ("cmdline", "environ"):
            assert KEY.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


PROGRAM = """
import os
from trainer.contract.encryption import new_keyset
from trainer.checkpoint.encrypting_processes import EncryptingProcesses
made = EncryptingProcesses(new_keyset(), 2)
made.encrypt_pieces([memoryview(b"x")], "k")
processes = [made._free.get() for _ in range(2)]
print(*(each._process.pid for each in processes), flush=True)
input()
"""


def test_they_end_with_the_process_that_started_them() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    assert len(pids) == 2
    program.kill()
    program.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "they have ended", 30)


def work_as_beside_a_gpu(assignment: Assignment) -> None:
    """A worker that lets processes encrypt its checkpoints; stands in for `run_worker`."""
    from trainer.checkpoint import writer

    writer.uses_processes = lambda device: True
    run_worker(assignment)


def test_a_run_continues_from_a_checkpoint_that_they_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = tiny_training()
    plain = run_alone(tmp_path / "plain", training, every_steps=5)
    monkeypatch.setattr(worker_group, "run_worker", work_as_beside_a_gpu)

    def kill(supervisor: Supervisor) -> None:
        assert supervisor.worker_group is not None
        supervisor.worker_group._forked[0].process.kill()

    run: FinishedRun = run_alone(tmp_path / "run", training, every_steps=5, restarts=1, at_first_checkpoint=kill)
    assert [event["tier"] for event in run.events("checkpoint.restored")] == ["stored"]
    assert run.series("train/loss") == plain.series("train/loss")
