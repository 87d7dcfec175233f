"""Where a worker's reports go: the first rank writes them to the spool, the others write nothing."""

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

from pydantic import JsonValue

from trainer.contract.run import MetricPoint, ProgressEvent
from trainer.reporting.log_format import LogFormatter
from trainer.reporting.spool import MAX_BATCH_RECORDS, SpoolWriter
from trainer.resilience.agent_watch import watch_agent
from trainer.resilience.assignment import Assignment, HttpConnection
from trainer.resilience.description import describe_on_request
from trainer.resilience.shared_status import SharedStatus

_FLUSH_SECONDS = 0.5
_SECONDS_BETWEEN_STEP_LINES = 5.0
_CLOSE_SECONDS = 30.0  # how long the end of a worker waits for a disk that refuses its last reports


class Reporter:
    """Reports of a worker: metric points and events of the first rank, and each rank's step and phase. Thread-safe."""

    def __init__(self, assignment: Assignment) -> None:
        self._generation = assignment.restart_count
        self._slot = assignment.local_rank
        self._rank, self._folder = assignment.rank, assignment.folder
        self._rare = SpoolWriter(assignment.spool, "progress", assignment.writer)  # of ranks that report nothing else
        self._shared_status = SharedStatus(assignment.shared_status, assignment.run.layout.processes_per_node)
        resume = assignment.run.resume
        self._step, self._phase = resume.step if resume is not None else -1, "starting"
        self._num_finished = 0
        self._metrics = self._events = None
        self._recent: deque[MetricPoint] = deque(maxlen=2 * MAX_BATCH_RECORDS)
        self._log_formatter: LogFormatter | None = None
        self._closed = threading.Event()
        if assignment.rank == 0:
            self._metrics = SpoolWriter(assignment.spool, "metrics", assignment.writer)
            self._events = SpoolWriter(assignment.spool, "progress", assignment.writer)
            if isinstance(assignment.connection, HttpConnection):  # a standalone run prints its progress itself
                steps = assignment.training.steps
                self._log_formatter = LogFormatter(steps, _SECONDS_BETWEEN_STEP_LINES, _to_log)
            threading.Thread(target=self._flush_often, name="reports", daemon=True).start()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Report the values after `step` finished steps. Values that are not finite are sent as null."""
        if self._metrics is not None:
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
            now = datetime.now(UTC)
            point = MetricPoint(step=step, time=now, generation=self._generation, values=finite)
            self._metrics.add(point)
            self._recent.append(point)
            if self._log_formatter is not None:
                self._log_formatter.point(point)

    def unsaved_metrics(self, *, with_spooled: bool) -> list[MetricPoint]:
        """Return the points that would be lost with this process, or with its node, if `with_spooled`; and with them
        all points of the first one's step: a later worker group that reports a step again hides what an earlier one has
        reported of it. At most those that are held in memory, if the platform has been unreachable for long."""
        if self._metrics is None:
            return []
        if self._metrics.num_waiting > MAX_BATCH_RECORDS:
            self._metrics.flush()
        count = self._metrics.num_waiting + (self._metrics.num_spooled() if with_spooled else 0)
        recent = list(self._recent)
        first = max(0, len(recent) - count)
        while 0 < first < len(recent) and recent[first - 1].step == recent[first].step:
            first -= 1
        return recent[first:]

    def flush_events(self) -> None:
        """Write spooled events to disk."""
        if self._events is not None:
            self._events.flush()

    def event(self, kind: str, *, at: datetime | None = None, **data: JsonValue) -> None:
        """Spool an event of the time `at`, by default now."""
        if self._events is not None:
            rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in data.items()}
            event = ProgressEvent(time=at or datetime.now(UTC), type=kind, data=rounded)
            self._events.add(event)
            if self._log_formatter is not None:
                self._log_formatter.event(event)

    def event_once(self, subject: str, kind: str, **data: str) -> None:
        """Report an event that any rank may be the first to see, once per node and `subject`."""
        try:
            (self._folder / f"reported-{kind}-{subject}").touch(exist_ok=False)
        except FileExistsError:
            return
        except OSError:  # such as a full disk: reported twice rather than never
            pass
        _to_error_log(f"{kind}: {data}")
        writer = self._events or self._rare
        writer.add(ProgressEvent(time=datetime.now(UTC), type=kind, data=dict(data)))
        writer.flush()

    @contextmanager
    def phase(self, name: str, heartbeat_phase: str | None = None) -> Iterator[None]:
        """Report the time of a start-up phase. `heartbeat_phase`: the phase of `shared_status` within it."""
        before = self._phase
        if heartbeat_phase is not None:
            self.enter_phase(heartbeat_phase)
        begin = time.monotonic()
        yield
        self.phase_finished(name, time.monotonic() - begin)
        if heartbeat_phase is not None:
            self.enter_phase(before)

    def phase_finished(self, name: str, seconds: float, at: datetime | None = None) -> None:
        """Spool the event of a phase that finished at the time `at`, by default now."""
        self.event("phase.finished", at=at, phase=name, seconds=seconds)

    def enter_phase(self, phase: str) -> None:
        """Report the phase that begins, for heartbeats."""
        self._phase = phase
        self.report_progress()

    def report_step(self, step: int) -> None:
        """Report the newest finished step, for heartbeats."""
        self._step = step
        self._num_finished += 1
        self.report_progress()

    def resume_after(self, step: int) -> None:
        """Report that this process continues after so many finished steps, which others have computed."""
        self._step = step
        self.report_progress()

    def report_progress(self) -> None:
        """Report that a part of this phase is done: a rank without progress is taken for one that hangs."""
        self._shared_status.report(self._slot, self._step, self._phase, self._num_finished)

    def report_exit(self, status: int) -> None:
        """Report the status with which this process is about to exit, which a killed fork server cannot pass on."""
        self._shared_status.report_exit(self._slot, status)

    def watch_each_other(self) -> None:
        """Let the agent ask what this process is doing, and end an agent that hangs; to be called by its main
        thread."""
        describe_on_request(self._shared_status, self._folder, self._rank)
        watch_agent(self._shared_status, self._rank)

    def report_micro_batch(self, sequences: int) -> None:
        """Report the size of micro-batches to the agent, which takes a smaller one if memory runs out."""
        self._shared_status.report_micro_batch(sequences)

    def stop_requested(self) -> bool:
        """Return whether the agent asks for a stop."""
        return self._shared_status.stop_requested() is not None

    def profile_requested(self) -> tuple[int, int]:
        """Return (number, steps) as the first rank's node received them, (0, 0) on other ranks."""
        return self._shared_status.profile_requested() if self._events is not None else (0, 0)

    def close(self) -> None:
        """Stop the thread that flushes, and write the last records."""
        self._closed.set()
        for writer in (self._metrics, self._events):
            if writer is not None:
                writer.flush_within(_CLOSE_SECONDS)

    def flush(self) -> None:
        """Write spooled records to disk. What it refuses is tried again by the next flush."""
        for writer in (self._metrics, self._events):
            if writer is not None:
                writer.flush()

    def deliver(self, seconds: float) -> bool:
        """Wait at most `seconds` for each kind of report. Return whether the platform has acknowledged all."""
        return all(writer is None or writer.wait_until_delivered(seconds) for writer in (self._metrics, self._events))

    def _flush_often(self) -> None:
        while not self._closed.wait(_FLUSH_SECONDS):
            self.flush()


def _to_error_log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _to_log(text: str) -> None:
    """Print a line, which the agent ships as this worker's log."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
