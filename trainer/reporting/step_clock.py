"""Time of the phases of a step, and the skew between ranks, measured without waiting for the device."""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median_low
from typing import TypeAlias

import torch

Mark: TypeAlias = float | torch.cuda.Event

SLOW_FACTOR = 1.5
SLOW_STEPS = 20  # in a row: single slow steps are not reported
SLOW_SAMPLES = 3  # in a row, where only some steps are measured


class StepClock:
    """Times steps and their phases: call `begin`, `end_phase` at the end of each phase, and `end`.

    A step lasts from the end of the one before, or from `resume`, so what happens between two steps counts unless it
    ends with `resume`. On an accelerator it records CUDA events, which `take` reads some steps later, when they have
    completed.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_accelerator = device.type == "cuda"
        self._marks: list[tuple[str, Mark]] = []
        self._finished: deque[tuple[Mark, list[tuple[str, Mark]], Mark]] = deque()
        self._since = self._now()
        self._last_pass = 0.0

    def resume(self) -> None:
        """Let the next step begin now."""
        self._since = self._now()

    def begin(self) -> None:
        """Begin a step."""
        self._marks = [("begin", self._now())]

    def end_phase(self, name: str) -> None:
        """Attribute the time since the previous phase to `name`; times of equal names add up."""
        self._marks.append((name, self._now()))

    def end(self) -> None:
        """End the step."""
        end = self._now()
        self._finished.append((self._since, self._marks, end))
        self._since = end

    def take(self) -> tuple[float, dict[str, float]]:
        """Return the seconds of the oldest step that was not taken yet, and those of each of its phases."""
        begin, marks, end = self._finished.popleft()
        parts = _between(marks)
        self._last_pass = _computing(parts)
        return _seconds(begin, end), parts

    def drop(self, count: int) -> None:
        """Drop the newest `count` steps, which are taken again; the next step begins where the oldest of them did."""
        for _ in range(count):
            self._since, _, _ = self._finished.pop()

    @property
    def pass_seconds(self) -> float:
        """Return the seconds of this rank's forward and backward passes: of this step, on an accelerator of the last
        one taken."""
        return self._last_pass if self._is_accelerator else _computing(_between(self._marks))

    def _now(self) -> Mark:
        if not self._is_accelerator:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        mark: Mark = event
        return mark


def _between(marks: list[tuple[str, Mark]]) -> dict[str, float]:
    """Seconds of each part: those since the mark before."""
    found: dict[str, float] = {}
    for (_, before), (name, after) in zip(marks, marks[1:], strict=False):
        found[name] = found.get(name, 0.0) + _seconds(before, after)
    return found


def _seconds(before: Mark, after: Mark) -> float:
    if isinstance(before, float):
        assert isinstance(after, float), "both are of the same device"
        return after - before
    milliseconds: float = before.elapsed_time(after)
    return milliseconds / 1000.0


def _computing(seconds: dict[str, float]) -> float:
    return seconds["forward"] + seconds["backward"]


class SkewDetector:
    """Detect a rank that stays much slower than the median of all: of the two in the middle, the faster."""

    def __init__(self, needed: int = SLOW_STEPS) -> None:
        self._rank, self._times, self._needed = -1, 0, needed

    def update(self, seconds_of_ranks: Sequence[float]) -> tuple[float, int | None]:
        """Return (slowest / median, rank), for the seconds of each rank.

        `rank` is the one that has just been slowest, by more than SLOW_FACTOR, as often in a row as is needed, else
        None.
        """
        median = median_low(seconds_of_ranks)
        slowest = max(range(len(seconds_of_ranks)), key=seconds_of_ranks.__getitem__)
        skew = seconds_of_ranks[slowest] / median if median else 1.0
        if skew <= SLOW_FACTOR:
            self._rank, self._times = -1, 0
            return skew, None
        self._rank, self._times = slowest, self._times + 1 if slowest == self._rank else 1
        return skew, slowest if self._times == self._needed else None
