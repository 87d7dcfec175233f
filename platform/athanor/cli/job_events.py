"""Wait for changes of a job: by the server's event stream, and by polling where streaming fails."""

import json
import math
import time
from collections.abc import Iterator
from typing import Any

import httpx

from athanor.cli.client import Client
from athanor.cli.errors import CliError

POLL_SECONDS = 0.5
QUIET_SECONDS = 30.0  # read timeout; the server sends a heartbeat every 15 s
WITHOUT_STREAM_SECONDS = 10.0  # after a failure, before the stream is tried again
MIN_INTERVAL_SECONDS = 1.0
MAX_EVENTS = 1000


class JobEvents:
    """Follows the events of a job. `next` waits for one and returns it, or None when the job must be read again."""

    def __init__(self, client: Client, job_id: str, give_up_at: float | None = None) -> None:
        self._client = client
        self._path = f"/jobs/{job_id}/events"
        self._give_up_at = give_up_at
        self._frames: Iterator[dict[str, Any] | None] = iter(())
        self._poll_until = 0.0
        self._after: str | None = None
        self._find_position()

    @property
    def is_over(self) -> bool:
        """Return whether `give_up_at` has passed."""
        return self._left() <= 0

    def next(self) -> dict[str, Any] | None:
        """Return the next event, or None to read the job again."""
        if time.monotonic() < self._poll_until:
            time.sleep(POLL_SECONDS)
            return None
        try:
            return next(self._frames)
        except StopIteration:
            return self._reopen()
        except httpx.HTTPError:
            self._fall_back_to_polling()
            return None

    def _left(self) -> float:
        return math.inf if self._give_up_at is None else self._give_up_at - time.monotonic()

    def _is_nearly_over(self, quiet: float) -> bool:
        """Return whether the deadline is nearer than half of the stream's read timeout, or over.

        The stream is then opened again with a shorter timeout. True a few times at most: each reopening halves it.
        """
        return self._left() <= 0 or MIN_INTERVAL_SECONDS < self._left() < quiet / 2

    def _reopen(self) -> dict[str, Any] | None:
        """Poll the job once the stream is open, so that no change in between is missed."""
        if self._after is None and not self._find_position():
            self._fall_back_to_polling()
            return None
        self._frames = self._read()
        try:
            return next(self._frames)
        except (StopIteration, httpx.HTTPError):
            self._fall_back_to_polling()
            return None

    def _fall_back_to_polling(self) -> None:
        self._frames = iter(())
        self._poll_until = time.monotonic() + WITHOUT_STREAM_SECONDS

    def _find_position(self) -> bool:
        """Set the position past the first MAX_EVENTS events. Return whether the server answered.

        The job itself is read after this. Events of a longer history are read again by the stream.
        """
        try:
            self._after = str(self._client.get(self._path, limit=MAX_EVENTS, patience_seconds=0)["next_after"])
        except CliError:
            self._poll_until = time.monotonic() + WITHOUT_STREAM_SECONDS
            return False
        return True

    def _read(self) -> Iterator[dict[str, Any] | None]:
        """Yield None once connected, then the data of each event, and None at the deadline."""
        quiet = min(QUIET_SECONDS, max(0.05, self._left()))
        try:
            with self._client.stream(self._path, str(self._after), quiet) as lines:
                yield None
                for line in lines:
                    if line.startswith("id: "):
                        self._after = line.removeprefix("id: ")
                    elif line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
                    if self._is_nearly_over(quiet):
                        return
        except httpx.ReadTimeout:
            if not self.is_over:
                raise
            yield None
