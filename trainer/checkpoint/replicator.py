"""Send this rank's copies to another node, in the background: one at a time, each until it has arrived."""

import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

from trainer.reporting.reporter import Reporter
from trainer.resilience.peer_link import PeerError, push
from trainer.resilience.shadow_memory import ShadowMemory

_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0


@dataclass(frozen=True)
class _Order:
    slot: int
    step: int
    header: dict[str, Any]


class Replicator:
    """A thread that ends with the process, and holds nothing up. A slot must not change until its copy has arrived."""

    def __init__(
        self, address: tuple[str, int], secret: bytes, memory: ShadowMemory, size: int, rank: int, reporter: Reporter
    ) -> None:
        """`address`: of the other node's agent. `size`: bytes of a copy."""
        self._address, self._secret, self._memory, self._size = address, secret, memory, size
        self._rank, self._reporter = rank, reporter
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._arrived_step = -1
        self._has_failed = False
        self.seconds = 0.0
        """Of the newest transfer, without attempts that failed."""
        threading.Thread(target=self._send_all, name="replicas", daemon=True).start()

    def send(self, slot: int, step: int, header: dict[str, Any]) -> None:
        """Send the copy in a slot, which is complete. `header`: as for `peer_link.push`."""
        self._orders.put(_Order(slot, step, header))

    def has_arrived(self, step: int) -> bool:
        """Return whether the other node has the copy of this step, and it was the newest to send."""
        return self._arrived_step == step

    def _send_all(self) -> None:
        while True:
            order = self._orders.get()
            pause = _MIN_PAUSE_SECONDS
            while not self._send(order):
                time.sleep(pause)  # the other node refuses, or is not reachable: a fault ends the run, or it goes by
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            self._arrived_step = order.step

    def _send(self, order: _Order) -> bool:
        begin = time.monotonic()
        try:
            push(self._address, self._secret, self._memory, order.slot, self._size, order.header)
        except (PeerError, OSError) as error:
            if not self._has_failed:
                self._reporter.event("replica.failed", step=order.step, rank=self._rank, because=str(error))
            self._has_failed = True
            return False
        self._has_failed = False
        self.seconds = time.monotonic() - begin
        return True
