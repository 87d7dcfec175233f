"""Slow clients as a program: `python -m tests.slow_clients URL --count 500 --seconds 60`.

A third sends bodies that never end, a third headers that never end, a third asks for a large file and reads it a few
bytes at a time. A connection that the server closes is opened again. It prints "open" when all are there, and ends by
itself. Only for a server of one's own on this machine.
"""

import argparse
import contextlib
import selectors
import socket
import sys
import time
from urllib.parse import urlsplit

from tests.raw_http import RawConnection

LARGE_FILE = "/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js"
PAUSE_SECONDS = 1.0  # between the bytes that each connection sends or reads


class SlowClient:
    def __init__(self, url: str, kind: str) -> None:
        self.url, self.kind = url, kind
        self.connection: RawConnection | None = None

    def open(self) -> None:
        self.connection = connection = RawConnection(self.url, receive_buffer=2048)
        if self.kind == "body":
            connection.send_head("POST", "/api/v1/invitations:accept", Content_Length="100000")
        elif self.kind == "head":
            connection.send(b"GET /healthz HTTP/1.1\r\nHost: ")
        else:
            connection.send_head("GET", LARGE_FILE)
        connection.socket.setblocking(False)

    def drip(self) -> None:
        """Send or read a little; open the connection again where the server has closed it."""
        try:
            if self.connection is None:
                self.open()
            assert self.connection is not None
            if self.kind == "answer":
                if not self.connection.socket.recv(64):
                    raise ConnectionResetError
            else:
                self.connection.socket.send(b"x")
                with contextlib.suppress(BlockingIOError):
                    if not self.connection.socket.recv(4096):
                        raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            if self.connection is not None:
                self.connection.close()
            self.connection = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.slow_clients")
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    host = urlsplit(given.url).hostname or ""
    if not socket.gethostbyname(host).startswith("127."):
        sys.exit(f"{host} is not this machine: only a server of one's own is attacked")
    kinds = ("body", "head", "answer")
    clients = [SlowClient(given.url, kinds[number % len(kinds)]) for number in range(given.count)]
    until = time.monotonic() + given.seconds
    for client in clients:
        client.open()
    print("open", flush=True)
    with selectors.DefaultSelector() as nothing:
        while time.monotonic() < until:
            for client in clients:
                client.drip()
            nothing.select(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
