"""Spool the output of worker processes as log lines."""

import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Literal

from trainer.contract.run import LogLine
from trainer.errors import TrainerError
from trainer.reporting.spool import SpoolWriter
from trainer.resilience.forking import ForkedProcess

MAX_LINE_BYTES = 8_192  # bytes; a longer line is cut into several
MIN_REDACTED_CHARACTERS = 4  # shorter secrets occur in ordinary words, and are not redacted
MASK = "***"
LAST_LINES = 100  # of a rank's stderr, which may name the error that it aborted with
_FLUSH_SECONDS = 0.5
_READ_BYTES = 65_536
logger = logging.getLogger(__name__)


@contextmanager
def logged_errors(problem: str) -> Iterator[None]:
    """Log a TrainerError instead of raising it."""
    try:
        yield
    except TrainerError as error:
        logger.warning("%s: %s", problem, error)


class _Tail:
    """One stream of one process and its unfinished last line."""

    def __init__(self, pipe: Connection, rank: int, stream: Literal["stdout", "stderr"]) -> None:
        self.pipe, self.rank, self.stream = pipe, rank, stream
        self.rest = b""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)


class LogFollower:
    """Reads the output of the node's processes and spools it as log lines."""

    def __init__(self, writer: SpoolWriter) -> None:
        self._writer = writer
        self._secrets: list[str] = []
        self._selector = selectors.DefaultSelector()
        self._open: set[int] = set()
        self._errors: dict[int, _Tail] = {}  # stderr by rank
        self._idle = threading.Condition()
        threading.Thread(target=self._loop, name="logs", daemon=True).start()

    def follow(self, forked: ForkedProcess, rank: int) -> None:
        """Read stdout and stderr of a process until it ends."""
        for tail in (_Tail(forked.stdout, rank, "stdout"), _Tail(forked.stderr, rank, "stderr")):
            with self._idle:
                self._open.add(tail.pipe.fileno())
                if tail.stream == "stderr":
                    self._errors[rank] = tail
            self._selector.register(tail.pipe.fileno(), selectors.EVENT_READ, tail)

    def last_errors(self, rank: int, patience_seconds: float) -> list[str]:
        """Return the last lines of a rank's stderr; wait at most `patience_seconds` until it is closed."""
        with self._idle:
            tail = self._errors.get(rank)
            if tail is None:
                return []
            self._idle.wait_for(lambda: tail.pipe.closed, patience_seconds)
            return list(tail.last_lines)

    def redact_values(self, secrets: Iterable[str]) -> None:
        """Redact each line of these values in all further output, longest first, since one may contain another."""
        lines = {line.strip() for secret in secrets for line in secret.splitlines()}
        self._secrets = sorted((line for line in lines if len(line) >= MIN_REDACTED_CHARACTERS), key=len, reverse=True)

    def redact(self, text: str) -> str:
        """Return the text with every secret replaced."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def write_line(self, text: str) -> None:
        """Write a log line of the agent itself."""
        text = self.redact(text)[:MAX_LINE_BYTES]
        self._writer.add(LogLine(time=datetime.now(UTC), rank=-1, stream="agent", text=text))

    def drain(self, patience_seconds: float) -> None:
        """Wait at most `patience_seconds` until all followed processes have closed their output, and as long for a disk
        that refuses the last lines."""
        with self._idle:
            self._idle.wait_for(lambda: not self._open, patience_seconds)
        self._writer.flush_within(patience_seconds)

    def _loop(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=_FLUSH_SECONDS):
                self._read(key.data)
            self._writer.flush()

    def _read(self, tail: _Tail) -> None:
        chunk = os.read(tail.pipe.fileno(), _READ_BYTES)
        *lines, tail.rest = (tail.rest + chunk).split(b"\n")
        if not chunk or len(tail.rest) > MAX_LINE_BYTES:
            lines, tail.rest = [*lines, tail.rest], b""
        for line in filter(None, lines):
            for start in range(0, len(line), MAX_LINE_BYTES):
                text = line[start : start + MAX_LINE_BYTES].decode(errors="replace").rstrip("\r")
                masked = self.redact(text)
                self._writer.add(LogLine(time=datetime.now(UTC), rank=tail.rank, stream=tail.stream, text=masked))
                with self._idle:
                    tail.last_lines.append(masked)
        if not chunk:
            descriptor = tail.pipe.fileno()
            self._selector.unregister(descriptor)
            tail.pipe.close()
            with self._idle:
                self._open.discard(descriptor)
                self._idle.notify_all()
