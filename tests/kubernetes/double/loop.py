"""One thread in which all controllers of the double run: what is due, in order, and what processes have ended."""

import heapq
import itertools
import logging
import os
import selectors
import threading
import time
from collections.abc import Callable, Hashable

log = logging.getLogger(__name__)


class Loop:
    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._wanted: dict[Hashable, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._is_over = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._wake()
        self._thread.join(10)

    def soon(self, key: Hashable, action: Callable[[], None]) -> None:
        """Once, however often it is asked for until then."""
        with self._lock:
            self._wanted.setdefault(key, action)
        self._wake()

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))
        self._wake()

    def on_readable(self, descriptor: int, action: Callable[[], None]) -> None:
        """Once; from the loop's own thread."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def _wake(self) -> None:
        with self._lock:  # the thread may end meanwhile, and its descriptors be those of other files
            if self._is_closed:
                return
            try:
                os.write(self._wake_writer, b"x")
            except BlockingIOError:
                return  # it has enough reasons to wake up

    def _run(self) -> None:
        while not self._is_over:
            for action in self._ready():
                try:
                    action()
                except Exception:
                    log.exception("a controller of the double failed")
        with self._lock:
            self._is_closed = True
            self._selector.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _ready(self) -> list[Callable[[], None]]:
        with self._lock:
            timeout = None
            if self._due:
                timeout = max(self._due[0][0] - time.monotonic(), 0)
            if self._wanted:
                timeout = 0
        ready: list[Callable[[], None]] = []
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                os.read(self._wake_reader, 65536)
            else:
                self._selector.unregister(key.fd)
                ready.append(key.data)
        with self._lock:
            while self._due and self._due[0][0] <= time.monotonic():
                ready.append(heapq.heappop(self._due)[2])
            ready += self._wanted.values()
            self._wanted.clear()
        return ready
