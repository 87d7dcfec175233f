"""Queue metrics for a sink in a thread of its own: the sink may be slow or unreachable."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from trainer.contract.run import EndClass, MetricPoint

MAX_QUEUED_POINTS = 20_000  # beyond this the oldest are dropped
POLL_SECONDS = 1.0
SECONDS_AFTER_FAILURE = 10.0
ReportEvent = Callable[..., None]  # (type of event, **data)


class Sink(Protocol):
    """A tool that receives metrics in addition to the platform."""

    name: str

    def open(self) -> None:
        """Connect. Called before the other methods, and repeated until it succeeds."""

    def write(self, points: list[MetricPoint]) -> None:
        """Write the points, all or none where the tool allows it; after an error the same points are written again."""

    def close(self, end_class: EndClass) -> None:
        """Send what is buffered, and report how the run ended."""
        ...


class SinkQueue:
    """`offer` takes points and returns immediately; `finish` waits for the sink, for a bounded time.

    The first failure is reported as an event, and at the end the number of points that were lost.
    """

    def __init__(self, sink: Sink, report_event: ReportEvent) -> None:
        self._sink, self._report_event = sink, report_event
        self._queued: list[MetricPoint] = []
        self._lost = 0
        self._is_open = self._has_failed = False
        self._end_class: EndClass | None = None
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._loop, name=sink.name, daemon=True)
        self._thread.start()

    def offer(self, points: Sequence[MetricPoint]) -> None:
        """Queue points. The oldest are dropped beyond the limit."""
        with self._lock:
            self._keep([*self._queued, *points])

    def finish(self, end_class: EndClass, patience_seconds: float) -> None:
        """Wait for the sink at most `patience_seconds`, then report what is missing."""
        self._end_class = end_class
        self._ending.set()
        self._thread.join(patience_seconds)
        with self._lock:
            lost = self._lost + len(self._queued)
        if lost:
            self._report_event("sink.incomplete", sink=self._sink.name, points_lost=lost)

    def _loop(self) -> None:
        pause = 0.0
        while True:
            is_last = self._ending.wait(pause)
            pause = POLL_SECONDS if self._write_queued() else SECONDS_AFTER_FAILURE
            if is_last:
                return

    def _write_queued(self) -> bool:
        with self._lock:
            points = list(self._queued)
        try:
            if not self._is_open:
                self._sink.open()
                self._is_open = True
            if points:
                self._sink.write(points)
        except Exception as error:  # noqa: BLE001 - no error of a tool's package may affect the run
            self._failed(error)
            return False
        with self._lock:
            written = set(map(id, points))
            self._queued = [point for point in self._queued if id(point) not in written]
        if self._end_class is not None:
            try:
                self._sink.close(self._end_class)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)
        return True

    def _failed(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._report_event("sink.failed", sink=self._sink.name, because=f"{type(error).__name__}: {error}"[:500])

    def _keep(self, points: list[MetricPoint]) -> None:
        self._lost += max(0, len(points) - MAX_QUEUED_POINTS)
        self._queued = points[-MAX_QUEUED_POINTS:]
