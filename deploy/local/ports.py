"""Loopback ports, chosen once per data folder so that addresses stay the same from one start to the next."""

import os
import random
import socket

from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json, write_json

DEFAULT_WEB_PORT = 8700
WEB_PORT_TRIES = 100
# Below the kernel's ephemeral range: an outgoing connection can then never sit on a stopped service's port.
INTERNAL_RANGE = range(20_000, 32_000)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose(folder: DataFolder, internal: list[str]) -> dict[str, int]:
    """Port of `web` and of each internal service, all free now. Stored ones are kept while they are free."""
    path = folder.root / "ports.json"
    known: dict[str, int] = read_json(path) or {}
    chosen = {"web": _web_port(known.get("web"))}
    for name in internal:
        port = known.get(name)
        chosen[name] = port if port and port not in chosen.values() and is_free(port) else _any_port(chosen)
    write_json(path, {**known, **chosen})
    return chosen


def _web_port(stored: int | None) -> int:
    asked = os.environ.get("ATHANOR_PORT")
    if asked:
        if not asked.isdigit() or not 1 <= int(asked) <= 65_535:
            raise StackError(f"ATHANOR_PORT is {asked!r}: give a number from 1 to 65535")
        if not is_free(int(asked)):
            raise StackError(
                f"ATHANOR_PORT {asked} on 127.0.0.1 is taken or not allowed: choose another, "
                "or unset it to have a free one picked"
            )
        return int(asked)
    if stored and is_free(stored):
        return stored
    for port in range(DEFAULT_WEB_PORT, DEFAULT_WEB_PORT + WEB_PORT_TRIES):
        if is_free(port):
            return port
    raise StackError(
        f"ports {DEFAULT_WEB_PORT} to {DEFAULT_WEB_PORT + WEB_PORT_TRIES - 1} on 127.0.0.1 are all taken: "
        "set ATHANOR_PORT to a free one"
    )


def _any_port(chosen: dict[str, int]) -> int:
    for port in random.sample(INTERNAL_RANGE, k=len(INTERNAL_RANGE)):
        if port not in chosen.values() and is_free(port):
            return port
    raise StackError(f"no free port on 127.0.0.1 in {INTERNAL_RANGE.start}..{INTERNAL_RANGE.stop - 1}")
