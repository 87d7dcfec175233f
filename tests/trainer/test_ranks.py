"""The pool of ranks that other tests run on."""

import os
import signal
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from torch.distributed import barrier

from tests.trainer.ranks import RankDied, RankPool
from trainer.parallel.mesh import Mesh


def crash(mesh: Mesh, folder: Path, times: int) -> int:
    """Rank 1 crashes in its first `times` calls, as native code does."""
    crashes = folder / f"rank{mesh.rank}"
    count = len(crashes.read_text()) if crashes.exists() else 0
    if mesh.rank == 1 and count < times:
        crashes.write_text("x" * (count + 1))
        os.kill(os.getpid(), signal.SIGSEGV)
    return count


def test_a_run_is_repeated_after_a_crash_and_the_crash_is_reported(tmp_path: Path) -> None:
    with RankPool(2) as pool, pytest.warns(UserWarning, match=r"rank 1 of 2 died: .*Segmentation fault"):
        assert pool.run(2, crash, tmp_path, 1) == [0, 1]


def test_a_second_crash_is_an_error(tmp_path: Path) -> None:
    with RankPool(2) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RankDied, match="rank 1 of 2 died"):
            pool.run(2, crash, tmp_path, 2)


def crash_in_a_collective(mesh: Mesh, folder: Path, times: int) -> int:
    """As `crash`, while rank 0 waits for rank 1."""
    count = crash(mesh, folder, times)
    barrier()
    return count


def test_a_crash_is_found_behind_the_lost_connection_of_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of rank 0, which lost its connection, arrives before the end of rank 1, which crashed."""

    def wait_for_all(connections: list[Connection], timeout: float | None = None) -> list[Connection]:
        return [connection for connection in connections if connection.poll(timeout)]

    monkeypatch.setattr("tests.trainer.ranks.wait", wait_for_all)
    with RankPool(2) as pool, pytest.warns(UserWarning, match="rank 1 of 2 died"):
        assert pool.run(2, crash_in_a_collective, tmp_path, 1) == [0, 1]
