"""Serves the web on a listening socket that several processes share: `python -m athanor.config.server --fd N`.

Each process takes one connection at a time and then steps back for a moment, the longer the more it holds. uvicorn
alone takes all waiting connections: of 32 that arrived together one process was seen to get 32 and the other none.

A process has room for a bounded number of connections. When it is full, the one that has waited for its client for
longest makes room: an attacker's, as healthy clients send a request within milliseconds.
"""

import argparse
import asyncio
import logging
import resource
import socket
from typing import Any

import uvicorn

from athanor.config import env
from athanor.config.protocol import LimitedProtocol, longest_waiting

log = logging.getLogger(__name__)

GRACE_SECONDS = 5
# After each connection, for each that is held: the process with fewer connections accepts the next one first.
STEP_BACK_SECONDS = 0.0002
MAX_STEP_BACK_SECONDS = 0.004
PAUSE_SECONDS = 0.5  # when no connection can be taken, as for want of file descriptors
MAX_CONNECTIONS = 8192  # of one process; event streams are bounded by the hub
RESERVED_DESCRIPTORS = 200  # for the database, the object store, files


class SharingServer(uvicorn.Server):
    """A uvicorn server that accepts connections of a shared socket one at a time."""

    def __init__(self, config: uvicorn.Config, listening: socket.socket) -> None:
        super().__init__(config)
        self._listening = listening
        self.most = most_connections()
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        await super().startup(sockets=[])
        self._accepting = asyncio.create_task(self._accept())
        self._accepting.add_done_callback(self._end_without)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to accept connections, and end the others."""
        if self._accepting is not None:
            self._accepting.cancel()
        await super().shutdown(sockets=[])

    def _end_without(self, accepting: asyncio.Task[None]) -> None:
        """End the process when it accepts no more connections, so that the supervisor restarts it."""
        if not accepting.cancelled() and accepting.exception() is not None:
            log.error("connections are no longer taken", exc_info=accepting.exception())
            self.should_exit = True

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listening)
                self._make_room()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                await loop.connect_accepted_socket(self._protocol, connection)
                held = len(self.server_state.connections)
                await asyncio.sleep(min(held * STEP_BACK_SECONDS, MAX_STEP_BACK_SECONDS))
            except OSError as error:
                log.warning("no connection could be taken: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)

    def _make_room(self) -> None:
        if len(self.server_state.connections) >= self.most:
            evicted = longest_waiting(self.server_state.connections)
            if evicted is not None:
                evicted.transport.abort()

    def _protocol(self) -> Any:
        return self.config.http_protocol_class(  # type: ignore[call-arg] # as uvicorn itself makes them
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def most_connections() -> int:
    """Return how many connections the process may hold, by its limit of open files."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return max(min(MAX_CONNECTIONS, descriptors - RESERVED_DESCRIPTORS), 64)


def configuration(application: Any, trusted_proxies: str) -> uvicorn.Config:
    """Return how the web is served. `trusted_proxies` (addresses and networks, separated by commas) are those whose
    X-Forwarded-For and X-Forwarded-Proto are believed; empty: nobody's."""
    return uvicorn.Config(
        application,
        http=LimitedProtocol,
        ws="none",
        access_log=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def main() -> None:
    """Serve the socket of the given file descriptor."""
    parser = argparse.ArgumentParser(prog="athanor.config.server")
    parser.add_argument("--fd", type=int, required=True, help="of a TCP socket that listens")
    listening = socket.socket(fileno=parser.parse_args().fd)
    listening.setblocking(False)
    config = configuration("athanor.config.asgi:application", env.read().trusted_proxies)
    SharingServer(config, listening).run()


if __name__ == "__main__":
    main()
