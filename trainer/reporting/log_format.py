"""Format events and metrics as lines for the log or the terminal."""

import time
from collections.abc import Callable

from trainer.contract.events import PREFLIGHT_COMPLETED, STEPS_RESOLVED
from trainer.contract.preflight import PreflightReport, format_report
from trainer.contract.run import MetricPoint, ProgressEvent


class LogFormatter:
    """Calls `write_line` for every event, and for a step at most once in `seconds_between`, and for the last one."""

    def __init__(self, steps: int, seconds_between: float, write_line: Callable[[str], None]) -> None:
        self._steps, self._seconds_between, self._write_line = steps, seconds_between, write_line
        self._written_at = -seconds_between

    def event(self, event: ProgressEvent) -> None:
        """Print an event as a line."""
        if event.type == STEPS_RESOLVED:
            self._steps = int(event.data["steps"])
        if event.type == "phase.finished":
            self._write_line(f"{event.data['phase']}: {event.data['seconds']:.2f} s")
        elif event.type == PREFLIGHT_COMPLETED:
            for line in filter(None, format_report(PreflightReport.model_validate(event.data["report"]))):
                self._write_line(line)
        else:
            self._write_line(f"{event.type}: " + ", ".join(f"{name} {value}" for name, value in event.data.items()))

    def point(self, point: MetricPoint) -> None:
        """Print loss and speed, at most every `seconds_between` and at the last step."""
        loss, speed = point.values.get("train/loss"), point.values.get("throughput/tokens_per_second")
        is_due = time.monotonic() - self._written_at >= self._seconds_between or point.step == self._steps
        if loss is None or speed is None or not is_due:
            return
        self._written_at = time.monotonic()
        self._write_line(f"step {point.step}/{self._steps}  loss {loss:.4f}  {speed:,.0f} tokens/s")
