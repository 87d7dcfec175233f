"""Processes of this node that prepare a data set together with those of other nodes."""

import os
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection

from trainer.agent.unit_workers import Report, UnitsTask, lead, take_units
from trainer.contract.manifest import StoredFile
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.resilience.failures import classify_exit, count_oom_kills
from trainer.resilience.forking import ForkedProcess, fork, make_pipe

MAX_PROCESSES = 64  # each has one shard of tokens and one batch of documents in memory
_POLL_SECONDS = 0.5


def num_processes(units: int) -> int:
    """Return how many processes of this node prepare `units`: one a core at most."""
    return max(1, min(units, len(os.sched_getaffinity(0)), MAX_PROCESSES))


class PreparationGroup:
    """The processes of this node, one of which leads if it is the leader's node."""

    def __init__(
        self, task: UnitsTask, processes: int, *, leads: bool, follow: Callable[[ForkedProcess, int], None]
    ) -> None:
        """Start the processes. `follow` reads their output."""
        self._oom_kills = count_oom_kills()
        self.has_lost_store = False
        self._forked: list[tuple[ForkedProcess, Connection]] = []
        for number, target in enumerate([lead] * leads + [take_units] * processes):
            reader, writer = make_pipe()
            forked = fork(f"prepare-{number}", target, task, writer)
            writer.close()
            follow(forked, -1)
            self._forked.append((forked, reader))

    def wait(self, is_stopping: Callable[[], bool], is_over: Callable[[], bool] = lambda: False) -> list[StoredFile]:
        """Wait until all have ended, or the work `is_over`. Return the files of the shards that were stored, on the
        leader's node. `has_lost_store`: whether a process has lost that of the leader on another node.

        Raises TrainerError: of the first process that failed, or STOPPED. No process is left after that.
        """
        files: list[StoredFile] = []
        waiting = {reader: forked for forked, reader in self._forked}
        try:
            while waiting and not is_over():
                for reader in connection.wait(list(waiting), _POLL_SECONDS):
                    assert isinstance(reader, Connection)
                    files += self._received(reader, waiting.pop(reader))
                if is_stopping():
                    raise TrainerError(EndClass.STOPPED, "stopped while preparing the data")
        finally:
            for forked, reader in self._forked:
                forked.process.kill()
                forked.process.join()
                reader.close()
        return files

    def _received(self, reader: Connection, forked: ForkedProcess) -> list[StoredFile]:
        try:
            report: Report = reader.recv()
        except EOFError as error:
            forked.process.join()
            had_oom_kill = count_oom_kills() > self._oom_kills
            failure = classify_exit(-1, forked.process.exitcode or 0, had_oom_kill=had_oom_kill)
            message = f"a process that prepared the data ended: {failure.message}"
            raise TrainerError(failure.end_class, message) from error
        if isinstance(report, tuple):
            raise TrainerError(*report)
        self.has_lost_store |= report is None
        return report or []
