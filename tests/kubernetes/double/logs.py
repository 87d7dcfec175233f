"""Logs of pods, line by line with the time at which each was first seen here, as a container runtime notes it."""

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

Line = tuple[int, bytes]
SECOND = 1_000_000_000


class Logs:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Path, list[Line]] = {}
        self._read: dict[Path, int] = {}
        self.tick = 1  # nanoseconds; with more, lines that arrive together have the same time

    def lines(self, file: Path) -> list[Line]:
        """Return all complete lines, with the nanosecond of each."""
        with self._lock:
            seen = self._seen.setdefault(file, [])
            try:
                with file.open("rb") as log:
                    log.seek(self._read.get(file, 0))
                    fresh = log.read()
            except FileNotFoundError:
                return []
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read[file] = self._read.get(file, 0) + len(whole)
            for line in whole.splitlines(keepends=True):
                now = time.time_ns() // self.tick * self.tick
                earliest = seen[-1][0] + (self.tick == 1) if seen else 0
                seen.append((max(now, earliest), line))
            return list(seen)

    def stamp(self, at: int) -> bytes:
        seconds, fraction = divmod(at, SECOND)
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09d}Z ".encode()
