"""Processes of this node that prepare a data set together with those of other nodes."""

from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection

from trainer.agent.unit_workers import Report, UnitsTask, lead, take_units
from trainer.contract.manifest import StoredFile
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.resilience.control_groups import available_cores, available_memory
from trainer.resilience.failures import classify_exit, count_oom_kills
from trainer.resilience.forking import ForkedProcess, fork, make_pipe
from trainer.resilience.store_server import STORE_KILLED, max_connections

MAX_PROCESSES = 64
PROCESS_BYTES = 768 * 2**20
"""Memory that each process is counted with: tokenising took up to 644 MiB (docs/benchmarks.md)."""
_POLL_SECONDS = 0.5


def num_processes(units: int, nodes: int) -> int:
    """Return how many processes of this node prepare its part of `units`, at least 1.

    One for each core that the node, or the limit of its control group, leaves to this job, as far as the memory goes;
    no more on all `nodes` than the first one's store has connections for, if its limit of open files is this node's.
    """
    memory = available_memory()
    by_memory = MAX_PROCESSES if memory is None else memory // PROCESS_BYTES
    by_connections = (max_connections() - 1) // nodes  # the leader has one
    return max(1, min(-(-units // nodes), available_cores(), by_memory, by_connections, MAX_PROCESSES))


class PreparationGroup:
    """The processes of this node, one of which leads if it is the leader's node."""

    def __init__(
        self, task: UnitsTask, processes: int, *, leads: bool, follow: Callable[[ForkedProcess, int], None]
    ) -> None:
        """Set up for `processes` that take units. `follow` reads their output, and that of the leader."""
        self._task, self._follow = task, follow
        self._targets = [lead] * leads + [take_units] * processes
        self._oom_kills = count_oom_kills()
        self._forked: list[tuple[ForkedProcess, Connection]] = []
        self.has_lost_store = False

    def run(
        self,
        is_stopping: Callable[[], bool],
        *,
        store_lost: Callable[[], bool] = lambda: False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> list[StoredFile]:
        """Start the processes, and wait until all have ended, or the work `is_over`. Return the files of the shards
        that were stored, on the leader's node. `store_lost`: their store, on this node, has ended, to which they would
        try to connect for minutes. `has_lost_store`: whether a process has lost that of the leader on another node.

        Raises TrainerError: of the first process that failed, PROCESS_KILLED without the store, or STOPPED. No process
        is left after that.
        """
        files: list[StoredFile] = []
        try:
            self._start()
            waiting = {reader: forked for forked, reader in self._forked}
            while waiting and not is_over():
                reporting = connection.wait(list(waiting), _POLL_SECONDS)
                if store_lost():  # comes first: the processes only report lost connections
                    raise TrainerError(EndClass.PROCESS_KILLED, STORE_KILLED)
                for reader in reporting:
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

    def _start(self) -> None:
        for number, target in enumerate(self._targets):
            reader, writer = make_pipe()
            forked = fork(f"prepare-{number}", target, self._task, writer)
            writer.close()
            self._forked.append((forked, reader))
            self._follow(forked, -1)

    def _received(self, reader: Connection, forked: ForkedProcess) -> list[StoredFile]:
        try:
            report: Report = reader.recv()
        except EOFError as error:
            forked.process.join()
            had_oom_kill = count_oom_kills() > self._oom_kills
            exit_code, process = forked.process.exitcode or 0, "a process that prepared the data"
            failure = classify_exit(-1, exit_code, had_oom_kill=had_oom_kill, process=process)
            raise TrainerError(failure.end_class, failure.message) from error
        if isinstance(report, tuple):
            raise TrainerError(*report)
        self.has_lost_store |= report is None
        return report or []
