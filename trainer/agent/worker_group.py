"""A group of worker processes on this node, which are started, watched and ended together (as in torchelastic)."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path

from trainer.agent.hang_watch import HangWatch, Stall
from trainer.agent.logs import LogFollower
from trainer.agent.worker_process import run_worker
from trainer.contract.run import EXIT_STATUS, EndClass, StopRequest, vagueness
from trainer.errors import EvidenceRow
from trainer.resilience.assignment import Assignment
from trainer.resilience.failures import (
    LOST_EXIT,
    RESTARTABLE,
    Failure,
    classify_exit,
    count_oom_kills,
    find_root_cause,
    judge_exception,
    read_failures,
)
from trainer.resilience.forking import ForkedProcess, fork
from trainer.resilience.kernel_log import KernelLog
from trainer.resilience.shared_status import SharedStatus
from trainer.resilience.store_server import STORE_KILLED

PEER_GRACE_SECONDS = 10.0  # a rank that fails because its peer ended may be noticed first
VAGUE_GRACE_SECONDS = 1.0  # what ended one rank without a clear cause may be explained by another
EXIT_GRACE_SECONDS = 3.0  # of a rank that has reported its failure
LAST_WORDS_SECONDS = 1.0  # for the output of a rank that has aborted
STOP_GRACE_SECONDS = 300.0  # for the checkpoint that a stop request asks for
_POLL_SECONDS = 0.2
_GOOD_EXITS = {EXIT_STATUS[EndClass.COMPLETED]: EndClass.COMPLETED, EXIT_STATUS[EndClass.STOPPED]: EndClass.STOPPED}
_ENDS_OF_A_PLACE = RESTARTABLE | {EndClass.OUT_OF_MEMORY, EndClass.GPU_FAULT, EndClass.NODE_STORAGE_ERROR}
"""Ends that depend on where a rank runs; all others are alike on all ranks."""


@dataclass(frozen=True)
class Outcome:
    """How a worker group ended. `exit_codes`: by rank. `corrupted_step`: of the state in which replicas differed.
    `evidence`: `CorruptionError`."""

    end_class: EndClass
    message: str
    last_step: int
    exit_codes: dict[str, int]
    corrupted_step: int | None = None
    evidence: Sequence[EvidenceRow] = ()


class WorkerGroup:
    """The training processes of this node between two restarts."""

    def __init__(
        self, assignments: list[Assignment], follower: LogFollower, report_stall: Callable[[Stall], None]
    ) -> None:
        """Start the processes; `assignments` are those of this node, in order of local rank. `report_stall`: is called
        when ranks make no progress, whether or not they are restarted."""
        self._assignments, self._report_stall = assignments, report_stall
        self.shared_status = SharedStatus(assignments[0].shared_status, len(assignments), create=True)
        self.shared_status.report_agent_look()
        self._follower = follower
        self._oom_kills = count_oom_kills()
        self._kernel_log = KernelLog()
        self._forked: list[ForkedProcess] = []
        self._hang_watch: HangWatch | None = None
        # For the heartbeat's thread: only one thread may poll a process, since the first poll after its end reads the
        # exit status from the fork server's pipe.
        self._num_alive = len(assignments)
        for assignment in assignments:
            forked = fork(f"rank-{assignment.rank}", run_worker, assignment)
            self._forked.append(forked)
            follower.follow(forked, assignment.rank)

    def watch(
        self,
        stop_wanted: Callable[[], StopRequest | None],
        over: Callable[[], bool],
        store_lost: Callable[[], bool],
    ) -> Outcome:
        """Wait until all processes have ended. `over`: end them immediately, without a checkpoint. `store_lost`: their
        rendezvous store has ended, for which they would wait until their connections time out, after minutes."""
        deadline: float | None = None
        pids = [forked.process.pid or 0 for forked in self._forked]
        hang_seconds = self._assignments[0].run.hang_seconds
        hang_watch = HangWatch(self.ranks, pids, self.shared_status, self.folder, hang_seconds)
        self._hang_watch = hang_watch
        while True:
            self.shared_status.report_agent_look()
            alive = [f.process.sentinel for f in self._forked if f.process.is_alive()]
            self._num_alive = len(alive)
            connection.wait(alive, _POLL_SECONDS)
            if over():
                self.kill()
                return self._outcome(EndClass.STOPPED, "the workers were ended without a checkpoint")
            stop = stop_wanted()
            if stop is not None:
                self.shared_status.request_stop(stop)
                deadline = deadline or time.monotonic() + STOP_GRACE_SECONDS
                if time.monotonic() > deadline:
                    self.kill()
                    return self._outcome(
                        EndClass.STOPPED, f"no checkpoint was saved within {STOP_GRACE_SECONDS:.0f} s of the request"
                    )
            codes = self._exit_codes()
            finished = [code for slot, code in enumerate(codes) if code is not None and self._has_finished(slot, code)]
            if len(finished) == len(codes):
                return self._outcome(_GOOD_EXITS[max(finished)], "")
            if len(finished) < sum(code is not None for code in codes) or self._has_reported():
                return self._conclude()
            if store_lost():
                self.kill()
                return self._outcome(EndClass.PROCESS_KILLED, STORE_KILLED)
            stall = hang_watch.poll()
            if stall is not None:
                self._report_stall(stall)
                if stall.is_hang:
                    return self._end_hang(stall, over)

    def _end_hang(self, stall: Stall, over: Callable[[], bool]) -> Outcome:
        """End the processes. If the rank that holds up the others is on another node, its agent ends its own, and
        begins a new round: wait for that first, so that no rank of it fails for want of these."""
        is_elsewhere = not stall.hang.ranks and self._assignments[0].run.layout.nodes > 1
        deadline = time.monotonic() + (PEER_GRACE_SECONDS if is_elsewhere else 0.0)
        while time.monotonic() < deadline and not over():
            self._wait_for_an_end(_POLL_SECONDS)
        self.kill()
        end_class = EndClass.COLLECTIVE_TIMEOUT if is_elsewhere else EndClass.HANG
        return self._outcome(end_class, stall.text)

    @property
    def folder(self) -> Path:
        """Return the folder of this worker group."""
        return self._assignments[0].folder

    @property
    def ranks(self) -> list[int]:
        """Return the ranks on this node, by local rank."""
        return [assignment.rank for assignment in self._assignments]

    @property
    def has_lost_fork_server(self) -> bool:
        """Return whether the fork server has ended, and with it everything that it had started, such as the rendezvous
        store; call it after `watch`."""
        return any(forked.process.exitcode == LOST_EXIT for forked in self._forked)

    def progress(self) -> tuple[int, str, int]:
        """Return (last finished step, phase, number of running processes)."""
        step, phase = self.shared_status.read(0)
        return step, phase, self._num_alive

    def idle_seconds(self) -> float:
        """Return the seconds since the last progress of a rank, after `watch` too; 0 before it."""
        return 0.0 if self._hang_watch is None else self._hang_watch.idle_seconds()

    def kill(self) -> None:
        """Kill all processes and wait for them."""
        for forked in self._forked:
            forked.process.kill()
        for forked in self._forked:
            forked.process.join()

    def _conclude(self) -> Outcome:
        """Find which process failed first, and end the rest."""
        begin = time.monotonic()
        while True:
            failures = self._failures()
            reporting = {failure.rank for failure in failures}
            open_ = [rank for rank, code in zip(self.ranks, self._exit_codes(), strict=True) if code is None]
            causes = [vagueness(failure.end_class) for failure in failures if not failure.because_of_peer]
            patience = PEER_GRACE_SECONDS if not causes else VAGUE_GRACE_SECONDS if min(causes) else 0.0
            if reporting.issuperset(open_) or time.monotonic() - begin >= patience:
                break
            self._wait_for_an_end(_POLL_SECONDS)
        self._wait_for_reporting_ranks(reporting)
        cause = find_root_cause(self._failures())  # the first cause may have been reported meanwhile
        self._kernel_log.close()
        codes = self._exit_codes()
        self.kill()
        named = {f"rank-{a.rank}": code for a, code in zip(self._assignments, codes, strict=True) if code is not None}
        return Outcome(
            cause.end_class, self._with_rank(cause), self._last_step(), named, cause.corrupted_step, cause.evidence
        )  # fmt: skip

    def _with_rank(self, cause: Failure) -> str:
        """Return the message, with the rank where its place matters and the message does not name it."""
        is_of_a_place = cause.end_class in _ENDS_OF_A_PLACE and self._assignments[0].run.layout.world_size > 1
        if not is_of_a_place or cause.corrupted_step is not None or f"rank {cause.rank} " in cause.message:
            return cause.message
        return f"rank {cause.rank}: {cause.message}"

    def _has_reported(self) -> bool:
        """Return whether a rank has reported a failure. A failed rank may not exit, because a thread of it waits for a
        lost peer."""
        return any(self._assignments[0].failures.glob("rank-*.json"))

    def _wait_for_reporting_ranks(self, reporting: set[int]) -> None:
        """Give ranks that have reported their failure time to print it and to end by themselves."""
        deadline = time.monotonic() + EXIT_GRACE_SECONDS
        while time.monotonic() < deadline and any(
            rank in reporting and code is None for rank, code in zip(self.ranks, self._exit_codes(), strict=True)
        ):
            self._wait_for_an_end(_POLL_SECONDS)

    def _wait_for_an_end(self, seconds: float) -> None:
        connection.wait([f.process.sentinel for f in self._forked if f.process.is_alive()], seconds)

    def _failures(self) -> list[Failure]:
        reported = read_failures(self._assignments[0].failures)
        reporting = {failure.rank for failure in reported}
        had_oom_kill = count_oom_kills() > self._oom_kills
        gpu_error = self._kernel_log.gpu_error()
        failures = [judge_exception(failure, gpu_error) for failure in reported]
        for slot, (assignment, code) in enumerate(zip(self._assignments, self._exit_codes(), strict=True)):
            if code is not None and not self._has_finished(slot, code) and assignment.rank not in reporting:
                has_aborted = code == -signal.SIGABRT
                lines = self._follower.last_errors(assignment.rank, LAST_WORDS_SECONDS) if has_aborted else []
                failures.append(
                    classify_exit(
                        assignment.rank, code, had_oom_kill=had_oom_kill, last_lines=lines, gpu_error=gpu_error
                    )
                )
        return failures

    def _outcome(self, end_class: EndClass, message: str) -> Outcome:
        self._kernel_log.close()
        codes = {f"rank-{rank}": code for rank, code in zip(self.ranks, self._exit_codes(), strict=True)}
        return Outcome(
            end_class, message, self._last_step(), {name: code for name, code in codes.items() if code is not None}
        )

    def _exit_codes(self) -> list[int | None]:
        """Return the exit status of each process, None while it runs. That of a process that the fork server could not
        pass on, because it has ended itself, is what the process reported before."""
        codes = [forked.process.exitcode for forked in self._forked]
        reported = [self.shared_status.exit_status(slot) for slot in range(len(codes))]
        return [
            known if code == LOST_EXIT and known is not None else code
            for code, known in zip(codes, reported, strict=True)
        ]

    def _has_finished(self, slot: int, code: int) -> bool:
        """Return whether a process that has ended did so at the end of its work, and not because code that it runs,
        such as a library's, has called exit(0)."""
        return code in _GOOD_EXITS and self.shared_status.exit_status(slot) == code

    def _last_step(self) -> int:
        return max(self.shared_status.read(slot)[0] for slot in range(len(self._assignments)))
