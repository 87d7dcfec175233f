"""Reports in words: what a person reads in a run's log or at a terminal."""

import time
from collections.abc import Callable

from trainer.contract.run import MetricPoint, ProgressEvent


class LogFormatter:
    """`say` gets a line for every event and evaluation, and for a step at most one each `seconds_between`."""

    def __init__(self, steps: int, seconds_between: float, say: Callable[[str], None]) -> None:
        self._steps, self._seconds_between, self._say = steps, seconds_between, say
        self._said_at = -seconds_between

    def event(self, event: ProgressEvent) -> None:
        """Print an event as a line."""
        if event.type == "phase.finished":
            self._say(f"{event.data['phase']}: {event.data['seconds']:.2f} s")
        else:
            self._say(f"{event.type}: " + ", ".join(f"{name} {value}" for name, value in event.data.items()))

    def point(self, point: MetricPoint) -> None:
        """Print loss and speed, at most every `seconds_between` and at the last step."""
        loss, speed = point.values.get("train/loss"), point.values.get("throughput/tokens_per_second")
        is_due = time.monotonic() - self._said_at >= self._seconds_between or point.step == self._steps
        if loss is None or speed is None or not is_due:
            return
        self._said_at = time.monotonic()
        self._say(f"step {point.step}/{self._steps}  loss {loss:.4f}  {speed:,.0f} tokens/s")
