"""Serves the web on a listening socket that several processes share: `python -m athanor.config.server --fd N`."""

import argparse
import socket
from typing import Any

import uvicorn

from athanor.config import env
from athanor.config.protocol import LimitedProtocol
from athanor.core.service_notify import ALIVE, READY, interval_seconds, notify

GRACE_SECONDS = 5


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
        timeout_notify=int(interval_seconds()),
        callback_notify=_notify,
    )


async def _notify() -> None:
    """Report that this process serves; called from its event loop, at its start and then every `timeout_notify`."""
    notify(READY, ALIVE)


def main() -> None:
    """Serve the socket of the given file descriptor."""
    parser = argparse.ArgumentParser(prog="athanor.config.server")
    parser.add_argument("--fd", type=int, required=True, help="of a TCP socket that listens")
    listening = socket.socket(fileno=parser.parse_args().fd)
    config = configuration("athanor.config.asgi:application", env.read().trusted_proxies)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
