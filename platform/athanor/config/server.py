"""Serves the web on a listening socket that several processes share: `python -m athanor.config.server --fd N`."""

import argparse
import asyncio
import socket
import time
from collections.abc import Sized
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from athanor.config import env
from athanor.config.forwarded import ForwardedHeadersApplication, Network, parse_proxies
from athanor.config.protocol import LimitedProtocol
from athanor.core.service_notify import ALIVE, READY, interval_seconds, notify

GRACE_SECONDS = 5
TICK_SECONDS = 1.0
# Before each accept, for each connection that the process has: the one with fewer accepts first.
STEP_BACK_SECONDS = 0.0001
BACKLOG = 2048  # as uvicorn's own sockets
MAX_STEP_BACK_SECONDS = 0.001  # each new connection waits for it beside many others


class SharedSocket(socket.socket):
    """A listening socket whose connections are distributed over the processes that accept from it.

    Otherwise the process that wakes first takes all that wait, and a connection stays with its process: of 8 clients
    that came together one process was seen to get all, and two thirds of the requests per second were left.
    """

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self.connections: Sized = ()
        self._has_accepted = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one connection whenever the event loop asks. Raises BlockingIOError when none is left."""
        if self._has_accepted:
            self._has_accepted = False
            raise BlockingIOError  # asyncio asks again until there is none
        # This blocks the event loop: asyncio polls the socket in each iteration, and has no way to postpone an accept.
        time.sleep(min(len(self.connections) * STEP_BACK_SECONDS, MAX_STEP_BACK_SECONDS))
        accepted = super().accept()
        self._has_accepted = True
        return accepted


class Server(uvicorn.Server):
    """A server that looks at its clock once a second, not ten times: an idle stack uses a third less CPU.

    A signal to stop wakes it.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Call `on_tick`, which counts tenths of a second, until it or a signal ends the server."""
        self._loop = asyncio.get_running_loop()
        tenths = 0
        while not await self.on_tick(tenths):
            tenths += 10
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._stopping.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, as a handler of signals."""
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)


class Config(uvicorn.Config):
    """uvicorn's configuration with another reader of X-Forwarded-For and X-Forwarded-Proto (config/forwarded.py)."""

    def __init__(self, application: Any, proxies: list[Network], **options: Any) -> None:
        super().__init__(application, proxy_headers=False, **options)
        self._proxies = proxies

    def load(self) -> None:
        """Load the application."""
        super().load()
        self.loaded_app = ForwardedHeadersApplication(self.loaded_app, self._proxies)


def configuration(application: Any, trusted_proxies: str) -> uvicorn.Config:
    """Return how the web is served. `trusted_proxies` (addresses and networks, separated by commas) are those whose
    X-Forwarded-For and X-Forwarded-Proto are read; empty: none."""
    return Config(
        application,
        parse_proxies(trusted_proxies),
        http=LimitedProtocol,
        loop="asyncio",  # uvloop accepts by itself, all that wait
        ws="none",
        access_log=False,
        log_config=None,  # that of Django's settings
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_notify=int(interval_seconds()),
        callback_notify=_notify,
    )


async def _notify() -> None:
    """Report that this process serves; called from its event loop, at its start and then every `timeout_notify`."""
    notify(READY, ALIVE)


def listen(host: str, port: int) -> SharedSocket:
    """Return a socket that listens on an address of this machine. Raises OSError if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    return SharedSocket(made.detach())


def main() -> None:
    """Serve the socket of the given file descriptor."""
    parser = argparse.ArgumentParser(prog="athanor.config.server")
    parser.add_argument("--fd", type=int, required=True, help="of a TCP socket that listens")
    serve(SharedSocket(parser.parse_args().fd))


def serve(listening: SharedSocket) -> None:
    """Serve the web on a socket until a signal ends it."""
    server = Server(configuration("athanor.config.asgi:application", env.read().trusted_proxies))
    listening.connections = server.server_state.connections
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
