"""Traces of some steps, of every rank, for Chrome's or Perfetto's trace viewer."""

import contextlib
import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.reporting.stats import StepStats
from trainer.resilience.assignment import Assignment, traces_folder


class StepProfiler:
    """Traces requested steps; call `begin` and `end` around each step, numbered from 1. Other steps are not traced."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._first, self._last = assignment.profile or (0, 0)
        self._folder = assignment.profile_folder
        self._profile: profile | None = None
        self._begun = self._ended = self._heard = 0

    @property
    def is_active(self) -> bool:
        """Return whether the current step is traced."""
        return self._profile is not None

    def handle_requests(self, known: list[StepStats], done: int) -> None:
        """Trace the steps after `done` if the statistics contain a new request; all ranks see it after the same
        step."""
        for stats in known:
            if stats.profile_number > self._heard and self._profile is None:
                self._heard = int(stats.profile_number)
                self._first, self._last = done + 1, done + int(stats.profile_steps)
                self._folder = traces_folder(self._assignment.folder, self._heard)

    def begin(self, step: int) -> None:
        """Begin a step; the first step to profile starts the profiler."""
        if self._first <= step <= self._last and self._profile is None:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, acc_events=True)
            self._profile.start()
            self._begun = step
        if self._profile is not None:
            self._span = record_function(f"step {step}")
            self._span.__enter__()

    def end(self, step: int) -> None:
        """End a step; the last step to profile writes the trace."""
        self._ended = step
        if self._profile is not None:
            self._span.__exit__(None, None, None)
        if step >= self._last:
            self.close()

    def close(self) -> None:
        """Write the trace of the steps recorded until now.

        If that fails, the run continues, and a file `*.failed` has the error.
        """
        if self._profile is None:
            return
        path = self._folder / f"steps-{self._begun}-{self._ended}-rank-{self._assignment.rank}.json"
        try:
            self._profile.stop()
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".partial")
            self._profile.export_chrome_trace(str(partial))
            partial.replace(path)
        except (OSError, RuntimeError) as error:
            sys.stderr.write(f"cannot write the trace {path}: {error}\n")
            with contextlib.suppress(OSError):
                path.with_suffix(".failed").write_text(str(error))
        self._profile = None
