"""Watches whether the ranks of a node make progress, and asks them what they are doing when they do not."""

import time
from dataclasses import dataclass
from pathlib import Path

from trainer.resilience.description import process_state, read_description
from trainer.resilience.hang import Hang, activity, find_hang, format_stacks
from trainer.resilience.progress import Observed, ProgressWatch
from trainer.resilience.shared_status import SharedStatus

EXAMINATION_SECONDS = 5.0
"""Over which the CPU time of the ranks is measured, and in which they must answer."""


@dataclass(frozen=True)
class Stall:
    """Ranks without progress for `seconds`. `is_hang`: they are not waited for any longer. `step`: last finished one.
    `log_lines`: what each rank is doing."""

    hang: Hang
    is_hang: bool
    phase: str
    step: int
    seconds: float
    log_lines: list[str]

    @property
    def text(self) -> str:
        """Return what happened, for people."""
        return f"no progress for {self.seconds:.0f} s in phase {self.phase}: {self.hang.because}"


@dataclass(frozen=True)
class _Examination:
    number: int
    begin: float
    cpu_seconds: list[float]


class HangWatch:
    """Call `poll` often. `ranks`, `pids`: in order of their places on this node."""

    def __init__(
        self,
        ranks: list[int],
        pids: list[int],
        shared_status: SharedStatus,
        folder: Path,
        hang_seconds: float | None = None,
    ) -> None:
        self._ranks, self._pids, self._shared_status, self._folder = ranks, pids, shared_status, folder
        self._progress = ProgressWatch(len(ranks), hang_seconds)
        self._before = time.monotonic()
        self._examination: _Examination | None = None
        self._next_examination = 0.0  # seconds without progress: one that may take long is examined again later

    def idle_seconds(self) -> float:
        """Return the seconds since the last progress that was observed, of the rank that has made none for longest."""
        not_observed = time.monotonic() - self._before
        return max(self._progress.idle(slot) for slot in range(len(self._ranks))) + not_observed

    def poll(self) -> Stall | None:
        """Observe all ranks. Return what holds them up, once it has been examined."""
        now = time.monotonic()
        found = [process_state(pid) for pid in self._pids]
        self._progress.observe(
            [
                Observed(*self._shared_status.progress(slot), self._shared_status.read(slot)[1], state in "Tt")
                for slot, (state, _) in enumerate(found)
            ],
            now - self._before,
        )
        self._before = now
        running = [slot for slot, (state, _) in enumerate(found) if state not in "XZ"]
        overdue = [slot for slot in self._progress.overdue() if slot in running]
        if not overdue:
            self._examination, self._next_examination = None, 0.0
            return None
        seconds = max(self._progress.idle(slot) for slot in overdue)
        if self._examination is None:
            if seconds >= self._next_examination:
                number = self._shared_status.request_description()
                self._examination = _Examination(number, now, [cpu_seconds for _, cpu_seconds in found])
            return None
        passed = now - self._examination.begin
        if passed < EXAMINATION_SECONDS:
            return None
        activities = []
        for slot in running:
            state, cpu_seconds = found[slot]
            share = (cpu_seconds - self._examination.cpu_seconds[slot]) / passed
            description = read_description(self._folder, self._ranks[slot], self._examination.number)
            activities.append(activity(self._ranks[slot], state, share, description))
        self._examination, self._next_examination = None, 2 * seconds
        hang = find_hang(activities)
        is_hang = (hang.is_certain and any(self._progress.has_rhythm(slot) for slot in overdue)) or any(
            self._progress.must_end(slot) for slot in overdue
        )
        step, phase = self._shared_status.read(overdue[0])
        lines = [line for each in activities for line in format_stacks(each)]
        return Stall(hang, is_hang, phase, step, seconds, lines)
