"""Where a worker's reports go: the first rank writes them to the spool, the others write nothing."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from trainer.contract.run import MetricPoint, ProgressEvent
from trainer.resilience.assignment import Assignment
from trainer.resilience.board import Board
from trainer.spool import SpoolWriter

_FLUSH_SECONDS = 0.5


class Reporter:
    """Points, events and the node's board. Safe between threads."""

    def __init__(self, assignment: Assignment) -> None:
        self._generation = assignment.generation
        self._slot = assignment.local_rank
        self._board = Board(assignment.board, assignment.run.layout.processes_per_node)
        resume = assignment.run.resume
        self._step, self._phase = resume.step if resume is not None else -1, "starting"
        self._metrics = self._events = None
        self._closed = threading.Event()
        if assignment.rank == 0:
            self._metrics = SpoolWriter(assignment.spool, "metrics", assignment.writer)
            self._events = SpoolWriter(assignment.spool, "progress", assignment.writer)
            threading.Thread(target=self._flush_often, name="reports", daemon=True).start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """`step`: number of finished steps. What is not finite is sent as null."""
        if self._metrics is not None:
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
            now = datetime.now(UTC)
            self._metrics.add(MetricPoint(step=step, time=now, generation=self._generation, values=finite))

    def event(self, kind: str, **data: float | str | None) -> None:
        if self._events is not None:
            rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in data.items()}
            self._events.add(ProgressEvent(time=datetime.now(UTC), type=kind, data=rounded))

    @contextmanager
    def phase(self, name: str, shown: str | None = None) -> Iterator[None]:
        """Time a start-up phase; `shown` (a board phase) is what heartbeats say meanwhile."""
        before = self._phase
        if shown is not None:
            self.enter(shown)
        begin = time.monotonic()
        yield
        self.phase_finished(name, time.monotonic() - begin)
        if shown is not None:
            self.enter(before)

    def phase_finished(self, name: str, seconds: float) -> None:
        self.event("phase.finished", phase=name, seconds=seconds)

    def enter(self, phase: str) -> None:
        self._phase = phase
        self._board.report(self._slot, self._step, phase)

    def finished_step(self, step: int) -> None:
        self._step = step
        self._board.report(self._slot, step, self._phase)

    def stop_requested(self) -> bool:
        return self._board.stop_requested() is not None

    def close(self) -> None:
        self._closed.set()
        self.flush()

    def flush(self) -> None:
        for writer in (self._metrics, self._events):
            if writer is not None:
                writer.flush()

    def _flush_often(self) -> None:
        while not self._closed.wait(_FLUSH_SECONDS):
            self.flush()
