"""Deliver spooled batches to the platform, in the order of each writer; they stay on disk until it has acknowledged
them.
"""

import logging
import re
import threading
from pathlib import Path

import httpx

from trainer.client.platform import AttemptOver, Platform, SequenceGap
from trainer.contract.run import Batch, EndClass
from trainer.reporting.sinks.sink_queue import SinkQueue
from trainer.reporting.spool import KINDS

logger = logging.getLogger(__name__)

_BATCH_FILE = re.compile(r"^(?P<writer>[a-z0-9-]+)\.(?P<sequence>\d{9})\.json$")
_RETRIED_STATUS = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}
_POLL_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 10.0
SINK_TIMEOUT_SECONDS = 30.0
"""How long the end of a run waits for each sink."""


class Shipper:
    """Deliver the batches of a spool folder in a thread.

    The folder is the only state, so a new shipper continues where an earlier one stopped. Connection errors, 5xx, 408
    and 429 are retried until they succeed, with growing pauses of at most 10 s. A batch that is refused with another
    4xx is renamed to `*.refused` and skipped. `attempt_over` is set when the platform no longer accepts the token.
    `sinks` receive the metric points that the platform has acknowledged.
    """

    def __init__(self, spool: Path, platform: Platform) -> None:
        self._spool, self._platform = spool, platform
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.attempt_over: AttemptOver | None = None
        self.sinks: list[SinkQueue] = []
        self._renamed: dict[str, tuple[str, int]] = {}

    def start(self) -> None:
        """Start the thread that delivers batches."""
        self._thread = threading.Thread(target=self._loop, name="shipper", daemon=True)
        self._thread.start()

    def finish(self, timeout_seconds: float) -> bool:
        """Deliver the remaining batches for at most `timeout_seconds`. Return whether the spool is empty.

        Call it when all writers have flushed.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        return not self._list_batches()

    def finish_sinks(self, end_class: EndClass) -> None:
        """Close the sinks, then try once to deliver the events that they have reported. Call it after `finish`."""
        for sink in self.sinks:
            sink.finish(end_class, SINK_TIMEOUT_SECONDS)
        try:
            self.deliver_all()
        except (httpx.HTTPError, AttemptOver) as error:
            logger.warning("the last events of the metric sinks were not delivered: %s", error)

    def deliver_all(self) -> None:
        """Try each spooled batch once. Raises httpx.HTTPError at the first that must be retried, AttemptOver."""
        blocked: set[str] = set()
        for kind, writer, sequence, path in self._list_batches():
            if writer not in blocked and not self._deliver(kind, writer, sequence, path):
                blocked.add(writer)

    def _deliver(self, kind: str, writer: str, sequence: int, path: Path) -> bool:
        """Return whether the writer's next batch can be sent."""
        batch = Batch.model_validate_json(path.read_bytes())
        name, first = self._renamed.get(writer, (writer, 0))
        try:
            self._platform.deliver(kind, batch.model_copy(update={"writer": name, "sequence": sequence - first}))
        except SequenceGap as gap:
            if gap.next_sequence + first <= sequence:
                # The platform has lost batches that it had acknowledged, and their files are deleted. So the gap in
                # this writer's numbers stays, and the remaining batches are sent under a new writer's name.
                self._renamed[writer] = (f"{writer[:34]}-r{sequence % 1000}", sequence)
                return False
        except httpx.HTTPStatusError as error:
            if not error.response.is_client_error or error.response.status_code in _RETRIED_STATUS:
                raise
            # A batch that is refused for its content would block all that follow forever.
            logger.warning(
                "the platform refused %s (%s) with HTTP %d, and it was dropped: %s",
                path.name, kind, error.response.status_code, error.response.text[:300],
            )  # fmt: skip
            path.replace(path.with_suffix(".refused"))
            return True
        path.unlink()
        for sink in self.sinks:
            sink.offer(batch.points)
        return True

    def _list_batches(self) -> list[tuple[str, str, int, Path]]:
        """Return (kind, writer, sequence, path) of the batches on disk, by kind, then by name."""
        found: list[tuple[str, str, int, Path]] = []
        for kind in KINDS:
            folder = self._spool / kind
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if match := _BATCH_FILE.match(path.name):
                    found.append((kind, match["writer"], int(match["sequence"]), path))
        return found

    def _loop(self) -> None:
        pause = _POLL_SECONDS
        while True:
            is_stopping = self._stop.is_set()
            try:
                self.deliver_all()
                pause = _POLL_SECONDS
            except AttemptOver as error:
                self.attempt_over = error
                return
            except (httpx.HTTPError, OSError) as error:  # OSError: the spool cannot be read, or too many files are open
                if not isinstance(error, httpx.HTTPError):
                    logger.warning("reports cannot be delivered: %s", error)
                pause = min(pause * 2, _MAX_PAUSE_SECONDS)
            if is_stopping and not self._list_batches():
                return
            self._stop.wait(pause) if not is_stopping else threading.Event().wait(min(pause, 1.0))
