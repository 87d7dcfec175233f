"""Loopback ports, chosen once per data folder so that addresses stay the same from one start to the next."""

import os
import random
import socket

from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json, write_json

DEFAULT_WEB_PORT = 8700
WEB_PORT_TRIES = 100
BACKLOG = 1024  # connections that wait while the web is started again
# Below the kernel's ephemeral range: an outgoing connection can then never sit on a stopped service's port.
INTERNAL_RANGE = range(20_000, 32_000)


def hold(port: int) -> socket.socket | None:
    """Return a socket that listens on the port, or None when the port is taken."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit it. uvicorn takes a socket that it is handed for a Unix one and leaves it out: the
    # second packet of each answer then waits 40 ms for the client to acknowledge the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        return None
    return listening


def is_free(port: int) -> bool:
    """Return whether nothing listens on a port of 127.0.0.1."""
    listening = hold(port)
    if listening is not None:
        listening.close()
    return listening is not None


def choose(folder: DataFolder, internal: list[str]) -> tuple[dict[str, int], socket.socket]:
    """Port of `web` and of each internal service, all free now. Stored ones are kept while they are free.

    The web's socket is handed out listening: no other program can take the port while the stack starts, and what
    arrives while the web is started again waits in line instead of being refused.
    """
    path = folder.root / "ports.json"
    known: dict[str, int] = read_json(path) or {}
    web = _web_socket(known.get("web"))
    chosen = {"web": web.getsockname()[1]}
    for name in internal:
        port = known.get(name)
        chosen[name] = port if port and port not in chosen.values() and is_free(port) else _any_port(chosen)
    write_json(path, {**known, **chosen})
    return chosen, web


def _web_socket(stored: int | None) -> socket.socket:
    asked = os.environ.get("ATHANOR_PORT")
    if asked:
        if not asked.isdigit() or not 1 <= int(asked) <= 65_535:
            raise StackError(f"ATHANOR_PORT is {asked!r}: give a number from 1 to 65535")
        held = hold(int(asked))
        if held is None:
            raise StackError(
                f"ATHANOR_PORT {asked} on 127.0.0.1 is taken or not allowed: choose another, "
                "or unset it to have a free one picked"
            )
        return held
    defaults = range(DEFAULT_WEB_PORT, DEFAULT_WEB_PORT + WEB_PORT_TRIES)
    for port in [*([stored] if stored else []), *defaults]:
        held = hold(port)
        if held is not None:
            return held
    raise StackError(
        f"ports {defaults.start} to {defaults.stop - 1} on 127.0.0.1 are all taken: set ATHANOR_PORT to a free one"
    )


def _any_port(chosen: dict[str, int]) -> int:
    for port in random.sample(INTERNAL_RANGE, k=len(INTERNAL_RANGE)):
        if port not in chosen.values() and is_free(port):
            return port
    raise StackError(f"no free port on 127.0.0.1 in {INTERNAL_RANGE.start}..{INTERNAL_RANGE.stop - 1}")
