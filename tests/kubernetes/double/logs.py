"""Logs of pods, line by line with the time at which each was first seen here, as a container runtime notes it."""

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

Line = tuple[float, bytes]


class Logs:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Path, list[Line]] = {}
        self._read: dict[Path, int] = {}

    def lines(self, file: Path) -> list[Line]:
        """All lines so far; one that is not finished yet is not there."""
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
                seen.append((max(time.time(), seen[-1][0] + 1e-6 if seen else 0.0), line))
            return list(seen)

    def stamp(self, at: float) -> bytes:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode()
