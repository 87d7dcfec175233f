"""A spool of reports on disk, until the platform has acknowledged them.

A writer adds numbered batches as complete files below `<spool>/<kind>/`; the agent's shipper sends them in order and
deletes those that were acknowledged. Writers and shipper share only these files, so each may be killed at any time.
"""

import logging
import threading
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from trainer.contract.run import Batch, LogLine, MetricPoint, ProgressEvent
from trainer.contract.system import SystemSample

logger = logging.getLogger(__name__)

Kind = Literal["metrics", "logs", "progress", "system"]
KINDS: tuple[Kind, ...] = ("progress", "metrics", "logs", "system")
Record = MetricPoint | LogLine | ProgressEvent | SystemSample
MAX_BATCH_RECORDS = 500  # records
MAX_BATCH_TEXT_CHARACTERS = 500_000  # characters of log text: servers refuse bodies of a few megabytes
# Of waiting log lines: on disk, and in memory while the disk refuses writes. Metrics and progress are never dropped.
MAX_SPOOLED_LOG_BYTES = 64 * 2**20
MAX_LOG_CHARACTERS_IN_MEMORY = 8 * 2**20
_MAX_KNOWN_BATCHES = 1000
_POLL_SECONDS = 0.05
_FIELDS: dict[Kind, str] = {"metrics": "points", "logs": "lines", "progress": "events", "system": "samples"}


class SpoolWriter:
    """Batches of one kind from one writer. Records wait in memory until `flush`; safe between threads.

    Once constructed, it never raises for a disk that is full or refuses writes for another reason: records then stay
    in memory until a later `flush` succeeds.
    """

    def __init__(self, spool: Path, kind: Kind, name: str) -> None:
        """`name` distinguishes writers of this kind and must be new for each process (it holds the generation)."""
        self._folder = spool / kind
        self._folder.mkdir(parents=True, exist_ok=True)
        self._kind: Kind = kind
        self._writer = f"{kind}-{name}"
        self._records: list[Record] = []
        self._sequence = 0
        self._written: deque[tuple[int, int]] = deque(maxlen=_MAX_KNOWN_BATCHES)  # (sequence, records)
        self._dropped = 0
        self._is_refused = False
        self._lock = threading.Lock()

    def add(self, record: Record) -> None:
        """Add a record to the next batch."""
        with self._lock:
            self._records.append(record)

    @property
    def num_waiting(self) -> int:
        """Return the number of records that wait in memory."""
        return len(self._records)

    def num_spooled(self) -> int:
        """Return the number of records that are on disk, and not delivered yet; of the last 1,000 batches."""
        with self._lock:
            while self._written and not self._path_of(self._written[0][0]).exists():  # they are delivered in order
                self._written.popleft()
            return sum(count for _, count in self._written)

    def flush(self) -> bool:
        """Write everything added until now to files. Return False if the disk refused a part, which is kept."""
        with self._lock:
            while self._records:
                count = self._next_count()
                try:
                    self._write(self._records[:count])
                except OSError as error:
                    self._keep(error)
                    return False
                del self._records[:count]
            self._is_refused = False
            return True

    def flush_within(self, seconds: float) -> bool:
        """Flush, trying again for at most `seconds` while the disk refuses it. Return whether all was written."""
        deadline = time.monotonic() + seconds
        while not self.flush():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def wait_until_delivered(self, seconds: float) -> bool:
        """Whether, within that time, everything added before was written and the shipper has delivered it."""
        deadline = time.monotonic() + seconds
        if not self.flush_within(seconds):
            return False
        following = self._path_of(self._sequence)
        while any(path < following for path in self._folder.glob(f"{self._writer}.*.json")):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _path_of(self, sequence: int) -> Path:
        return self._folder / f"{self._writer}.{sequence:09d}.json"

    def _keep(self, error: OSError) -> None:
        """Keep what could not be written, of log lines at most MAX_LOG_CHARACTERS_IN_MEMORY."""
        if not self._is_refused:  # once for each outage
            logger.warning("the spool cannot be written (%s): reports wait in memory", error)
        self._is_refused = True
        if self._kind == "logs":
            text = 0
            for count, record in enumerate(self._records):
                text += len(record.text) if isinstance(record, LogLine) else 0
                if text > MAX_LOG_CHARACTERS_IN_MEMORY:
                    self._dropped += len(self._records) - count
                    del self._records[count:]
                    return

    def _next_count(self) -> int:
        """How many of the waiting records make the next batch; at least one."""
        text = 0
        for count, record in enumerate(self._records[:MAX_BATCH_RECORDS]):
            text += len(record.text) if isinstance(record, LogLine) else 0
            if text > MAX_BATCH_TEXT_CHARACTERS and count > 0:
                return count
        return min(len(self._records), MAX_BATCH_RECORDS)

    def _write(self, records: list[Record]) -> None:
        if self._kind == "logs" and self._waiting_bytes() > MAX_SPOOLED_LOG_BYTES:
            self._dropped += len(records)
            return
        if self._dropped:
            reason = "the platform was unreachable or the disk full, and too many lines waited"
            text = f"{self._dropped} log lines were dropped: {reason}"
            records = [LogLine(time=datetime.now(UTC), rank=-1, stream="agent", text=text), *records]
        batch = Batch.model_validate({"writer": self._writer, "sequence": self._sequence, _FIELDS[self._kind]: records})
        final = self._path_of(self._sequence)
        partial = final.with_suffix(".partial")
        partial.write_text(batch.model_dump_json())
        partial.replace(final)
        self._written.append((self._sequence, len(records)))
        self._sequence += 1
        self._dropped = 0

    def _waiting_bytes(self) -> int:
        total = 0
        for path in self._folder.iterdir():
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # delivered meanwhile
        return total
