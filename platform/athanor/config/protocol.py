"""HTTP connections with limits that uvicorn lacks: their number, a request's head, clients that do not read, idling.

Bodies have limits of their own (api/gateway), which depend on the path.
"""

import asyncio
import resource
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEAD_SECONDS = 10.0  # from the first byte that may belong to a request to the end of its headers
HEAD_BYTES = 64 * 1024
STALL_SECONDS = 60.0  # a client that takes nothing of its answer for so long is given up
LINGER_SECONDS = 5.0  # for the rest of a body that was answered early, and for the end of a closed connection
MAX_CONNECTIONS = 8192  # of one process; event streams are bounded by the hub
RESERVED_DESCRIPTORS = 200  # for the database, the object store, files


def connection_limit() -> int:
    """Return how many connections the process may have, by its limit of open files."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return max(min(MAX_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS), 64)


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    When the process has `max_connections`, a new connection closes the one that has waited longest for its client: an
    attacker's, as healthy clients send a request within milliseconds. `waits_since` is when a connection began to wait
    for its client; None while a view processes its request.
    """

    max_connections = connection_limit()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.waits_since: float | None = self.loop.time()
        self._in_head = True
        self._in_body = False
        self._head_bytes = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Make room for the connection, and start the timer for the first request's head."""
        if len(self.connections) >= self.max_connections:
            evicted = longest_waiting(self.connections)
            if evicted is not None:
                evicted.transport.abort()
        super().connection_made(transport)
        self._start_timer("head", HEAD_SECONDS, self._give_up_head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Limit the time and the size of a request's head, and pass the data on."""
        if self._in_head:
            self._head_bytes += len(data)
            if "head" not in self._timers:
                self._start_timer("head", HEAD_SECONDS, self._give_up_head)
        super().data_received(data)
        # A chunk may end one request and begin another: only what is still a head is held against its limit.
        if self._in_head and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the request's headers are larger than {HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """Stop the timer for the head."""
        self._stop_timer("head")
        self._in_head, self._in_body = False, True
        self._head_bytes = 0
        self.waits_since = self.loop.time()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request is complete and no longer waits for its client."""
        self._in_body, self._in_head = False, True
        self.waits_since = None
        if "linger" in self._timers:  # it was answered before its end came
            self._stop_timer("linger")
            self.waits_since = self.loop.time()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note that the connection waits for the next request."""
        self.waits_since = self.loop.time()
        super().on_response_complete()
        if self._in_body and not self.transport.is_closing():
            # Closed now, unread bytes would make the kernel take the answer back: the client never saw it.
            self._start_timer("linger", LINGER_SECONDS, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the timer for a client that does not read."""
        super().pause_writing()
        self.waits_since = self.loop.time()
        self._start_timer("stall", STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop that timer."""
        self._stop_timer("stall")
        self.waits_since = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and abort it if it stays open."""
        super().timeout_keep_alive_handler()
        self._start_timer("linger", STALL_SECONDS, self.transport.abort)

    def _give_up_head(self) -> None:
        if self._head_bytes:
            self._refuse(408, f"the request's headers did not arrive within {HEAD_SECONDS:.0f} seconds")
        else:
            self._close_soon()

    def _refuse(self, status: int, detail: str) -> None:
        body = detail.encode()
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        self._close_soon()

    def _close_soon(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._start_timer("linger", LINGER_SECONDS, self.transport.abort)

    def _start_timer(self, name: str, seconds: float, action: Any) -> None:
        self._stop_timer(name)
        self._timers[name] = self.loop.call_later(seconds, action)

    def _stop_timer(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def longest_waiting(connections: Iterable[Any]) -> LimitedProtocol | None:
    """Return the connection that has waited longest for its client; None if a view processes each one's request."""
    waiting = [each for each in connections if isinstance(each, LimitedProtocol) and each.waits_since is not None]
    return min(waiting, key=lambda each: each.waits_since or 0.0, default=None)
