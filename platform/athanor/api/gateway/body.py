"""Read the body of a request before its view runs: bounded in size, in time, and over all requests of the process."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from athanor.api.limits import MIB, BodyTooLarge, deadline_seconds
from athanor.core.errors import RequestTimeout

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

# Of all unfinished bodies of the process together. When it is exceeded, the one that began first is refused as too
# slow: healthy clients take milliseconds.
MAX_TOTAL_BYTES = 256 * MIB


class BodyTooSlow(RequestTimeout):
    """A body that arrived more slowly than the minimum rate."""

    def __init__(self) -> None:
        super().__init__(
            "body_too_slow", "the body did not arrive in time", remedy="send it again, over a faster connection"
        )


class ClientGone(ConnectionResetError):
    """The client closed the connection before its body was complete. An OSError, as Django expects of a broken read."""


class BodyReader:
    """Reads bodies of one process. Use it on one event loop."""

    def __init__(self, max_total_bytes: int = MAX_TOTAL_BYTES) -> None:
        self._max_total = max_total_bytes
        self._total = 0
        self._sizes: dict[asyncio.Timeout, int] = {}  # of unfinished bodies, the oldest first

    async def read(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        """Return the complete body. Raises BodyTooLarge, BodyTooSlow and ClientGone."""
        length = declared_length(scope)
        if length == 0 or scope["method"] in ("GET", "HEAD"):  # their bodies have no meaning and are not read
            return b""
        if length is not None and length > limit:
            raise BodyTooLarge(limit)
        body = bytearray()
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(started + deadline_seconds(0)) as timeout:
                self._sizes[timeout] = 0
                try:
                    while True:
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise ClientGone("the client closed the connection within the body")
                        body += message.get("body", b"")
                        if len(body) > limit:
                            raise BodyTooLarge(limit)
                        if not message.get("more_body"):
                            return bytes(body)
                        timeout.reschedule(started + deadline_seconds(len(body)))
                        self._account(timeout, len(body))
                finally:
                    self._total -= self._sizes.pop(timeout)
        except TimeoutError as error:
            raise BodyTooSlow from error

    def _account(self, timeout: asyncio.Timeout, size: int) -> None:
        self._total += size - self._sizes[timeout]
        self._sizes[timeout] = size
        if self._total > self._max_total:
            oldest = next(iter(self._sizes))
            oldest.reschedule(asyncio.get_running_loop().time())


def declared_length(scope: Scope) -> int | None:
    """Return Content-Length, 0 for a request without a body, None for a chunked one."""
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


def at_least_rate(receive: Receive) -> Receive:
    """Return a `receive` for a body that is streamed to a view.

    It raises ClientGone if the client disconnects within the body or sends it more slowly than the minimum rate.
    """
    received = 0
    finished = False
    started = asyncio.get_running_loop().time()

    async def receive_in_time() -> Message:
        nonlocal received, finished
        if finished:
            return await receive()
        try:
            async with asyncio.timeout_at(started + deadline_seconds(received)):
                message = await receive()
        except TimeoutError as error:
            raise ClientGone("the body arrives too slowly") from error
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection within the body")
        received += len(message.get("body", b""))
        finished = not message.get("more_body")
        return message

    return receive_in_time
