"""Ships spooled batches to the platform in order; they stay on disk while the platform is unreachable."""

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

_NAME = re.compile(r"^(?P<writer>[a-z0-9-]+)\.(?P<sequence>\d{9})\.json$")
_PASSING = {httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS}
_FLUSH_SECONDS = 0.5
_LONGEST_PAUSE = 10.0
SINK_SECONDS = 30.0  # at the end of a run, for a sink that is slow


class Shipper:
    """State is the spool folder alone: a new shipper continues where a dead one stopped."""

    def __init__(self, spool: Path, platform: Platform) -> None:
        self._spool, self._platform = spool, platform
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.over: AttemptOver | None = None
        self.sinks: list[SinkQueue] = []  # are offered the points that the platform has
        self._renamed: dict[str, tuple[str, int]] = {}

    def start(self) -> None:
        """Start the thread that delivers batches."""
        self._thread = threading.Thread(target=self._loop, name="shipper", daemon=True)
        self._thread.start()

    def finish(self, patience_seconds: float) -> bool:
        """Ship what is left; true when the spool is empty. Call when all writers have flushed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(patience_seconds)
        return not self._waiting()

    def finish_sinks(self, end_class: EndClass) -> None:
        """After `finish`. The last events of the feeds are shipped too, if the platform accepts them now."""
        for feed in self.sinks:
            feed.finish(end_class, SINK_SECONDS)
        try:
            self.ship_all()
        except (httpx.HTTPError, AttemptOver) as error:
            logger.warning("the last events of the sinks were not delivered: %s", error)

    def ship_all(self) -> None:
        """One pass over everything waiting. Raises httpx.HTTPError where the platform does not take it."""
        blocked: set[str] = set()
        for kind, writer, sequence, path in self._waiting():
            if writer not in blocked and not self._ship(kind, writer, sequence, path):
                blocked.add(writer)

    def _ship(self, kind: str, writer: str, sequence: int, path: Path) -> bool:
        batch = Batch.model_validate_json(path.read_bytes())
        name, first = self._renamed.get(writer, (writer, 0))
        try:
            self._platform.deliver(kind, batch.model_copy(update={"writer": name, "sequence": sequence - first}))
        except SequenceGap as gap:
            if gap.next_sequence + first <= sequence:
                # The platform has lost batches that it acknowledged before. They cannot be had again, and this
                # writer's numbers can never close the gap: the rest continues under a new name.
                self._renamed[writer] = (f"{writer[:34]}-r{sequence % 1000}", sequence)
                return False
        except httpx.HTTPStatusError as error:
            if not error.response.is_client_error or error.response.status_code in _PASSING:
                raise
            # A batch that is refused for what it says would block all that follow for ever.
            logger.warning("%s of %s was refused: %s", path.name, kind, error.response.text[:300])
            path.replace(path.with_suffix(".refused"))
            return True
        path.unlink()
        for feed in self.sinks:
            feed.offer(batch.points)
        return True

    def _waiting(self) -> list[tuple[str, str, int, Path]]:
        found: list[tuple[str, str, int, Path]] = []
        for kind in KINDS:
            folder = self._spool / kind
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if match := _NAME.match(path.name):
                    found.append((kind, match["writer"], int(match["sequence"]), path))
        return found

    def _loop(self) -> None:
        pause = _FLUSH_SECONDS
        while True:
            last_pass = self._stop.is_set()
            try:
                self.ship_all()
                pause = _FLUSH_SECONDS
            except AttemptOver as error:
                self.over = error
                return
            except httpx.HTTPError:
                pause = min(pause * 2, _LONGEST_PAUSE)
            if last_pass and not self._waiting():
                return
            self._stop.wait(pause) if not last_pass else threading.Event().wait(min(pause, 1.0))
