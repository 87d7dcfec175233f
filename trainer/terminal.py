"""Progress of a standalone run, for a person at a terminal."""

import sys
import time
from pathlib import Path

from trainer.contract.run import Batch, EndClass, MetricPoint, ProgressEvent

_LINE_SECONDS = 1.0


class Terminal:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._shown_at = 0.0

    def show(self, kind: str, batch: Batch) -> None:
        """Called with each batch as it is delivered."""
        for event in batch.events:
            self._event(event)
        for line in batch.lines:
            who = "agent" if line.rank < 0 else f"rank {line.rank}"
            self._say(f"[{who}] {line.text}")
        for point in batch.points:
            self._point(point)

    def finish(self, end_class: EndClass, output: Path) -> None:
        self._say(f"{end_class.value}; everything of this run is in {output}")

    def _event(self, event: ProgressEvent) -> None:
        if event.type == "phase.finished":
            self._say(f"{event.data['phase']}: {event.data['seconds']:.2f} s")
        else:
            self._say(f"{event.type}: " + ", ".join(f"{name} {value}" for name, value in event.data.items()))

    def _point(self, point: MetricPoint) -> None:
        loss, speed = point.values.get("train/loss"), point.values.get("throughput/tokens_per_second")
        is_last = point.step == self._steps
        if loss is None or speed is None or (time.monotonic() - self._shown_at < _LINE_SECONDS and not is_last):
            return
        self._shown_at = time.monotonic()
        self._say(f"step {point.step}/{self._steps}  loss {loss:.4f}  {speed:,.0f} tokens/s")

    def _say(self, text: str) -> None:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
