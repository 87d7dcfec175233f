"""A trace of some steps, of every rank, for Chrome's or Perfetto's trace viewer."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class StepProfiler:
    """`begin(step)` and `end(step)` around each step (from 1). Outside of `first` to `last` they do nothing."""

    def __init__(self, wanted: tuple[int, int] | None, folder: Path, rank: int) -> None:
        self._first, self._last = wanted or (0, 0)
        self._path = folder / f"steps-{self._first}-{self._last}-rank-{rank}.json"
        self._profile: profile | None = None

    def begin(self, step: int) -> None:
        if self._first <= step <= self._last and self._profile is None:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities, acc_events=True)
            self._profile.start()

    def end(self, step: int) -> None:
        if step >= self._last:
            self.close()

    def close(self) -> None:
        """What there is so far is written, also where a run ends before the last step."""
        if self._profile is not None:
            self._profile.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._profile.export_chrome_trace(str(self._path))
            self._profile = None
