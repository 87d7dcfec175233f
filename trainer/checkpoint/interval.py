"""The longest time between stored checkpoints: what the spec says, or chosen by what the saves of this run cost."""

from collections import deque
from statistics import median

from trainer.contract.checkpoint_interval import FIRST_SECONDS, best_interval
from trainer.contract.run import RunConfig
from trainer.reporting.reporter import Reporter

MEASURED_SAVES = 5  # the newest, of which the median counts: the first takes longer, as it allocates memory
MEASURED_STEPS = 50  # the newest without a save, with which those during one are compared
CHANGE = 0.2  # of the interval, up to which it stays


class SaveInterval:
    """The longest time between checkpoints, on the rank that decides on it.

    With `checkpoint.every_minutes` `auto`, a save costs what training waited for it (stall), and what the steps took
    longer while it was written (slowdown): their number times the difference of the medians. GPUs report the last two
    steps of a save after its end, so that their slowdown is not counted. Each process begins with FIRST_SECONDS.
    `seconds`: the interval in force, None if the spec has none.
    """

    def __init__(self, run: RunConfig, world_size: int, reporter: Reporter) -> None:
        minutes = run.checkpoint.every_minutes
        self._is_auto = minutes == "auto"
        self.seconds = FIRST_SECONDS if isinstance(minutes, str) else None if minutes is None else 60.0 * minutes
        self._hours_between_failures = run.slot_hours_between_failures / world_size
        self._reporter = reporter
        self._stalls: deque[float] = deque(maxlen=MEASURED_SAVES)
        self._slowdowns: deque[float] = deque(maxlen=MEASURED_SAVES)
        self._durations: deque[float] = deque(maxlen=MEASURED_SAVES)
        self._undisturbed: deque[float] = deque(maxlen=MEASURED_STEPS)
        self._disturbed: list[float] = []

    def is_due(self, seconds: float, *, is_saving: bool) -> bool:
        """Return whether a save is due, `seconds` after the last one began. `is_saving`: whether that is still written;
        training would wait for it, so that none is due with `auto`."""
        return self.seconds is not None and seconds > self.seconds and not (self._is_auto and is_saving)

    def add_step(self, seconds: float, *, is_saving: bool) -> None:
        """Add the duration of a step. `is_saving`: whether a checkpoint was written during it."""
        if self._is_auto:
            (self._disturbed if is_saving else self._undisturbed).append(seconds)

    def add_save(self, stall_seconds: float, save_seconds: float) -> None:
        """Add a save that has ended, for which training waited `stall_seconds` before it was written in `save_seconds`.
        Choose the interval, and report it if it is the first or differs from that in force by more than CHANGE."""
        if not self._is_auto:
            return
        is_first = not self._stalls
        slowdown = 0.0
        if self._disturbed and self._undisturbed:
            slowdown = len(self._disturbed) * max(0.0, median(self._disturbed) - median(self._undisturbed))
        self._disturbed.clear()
        self._stalls.append(stall_seconds)
        self._slowdowns.append(slowdown)
        self._durations.append(save_seconds)
        stall, slowdown = median(self._stalls), median(self._slowdowns)
        seconds = best_interval(stall + slowdown, 3600.0 * self._hours_between_failures, max(self._durations))
        if not is_first and self.seconds is not None and abs(seconds - self.seconds) <= CHANGE * self.seconds:
            return
        self.seconds = seconds
        self._reporter.event(
            "checkpoint.interval",
            minutes=seconds / 60.0,
            stall_seconds=stall,
            slowdown_seconds=slowdown,
            mean_hours_between_failures=self._hours_between_failures,
        )
