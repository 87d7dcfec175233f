"""Connections as hostile or broken clients make them: bytes of one's own choice on a socket."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 20.0


def request_head(method: str, path: str, host: str, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


class RawConnection:
    def __init__(self, url: str, receive_buffer: int = 0) -> None:
        parts = urlsplit(url)
        self.host = f"{parts.hostname}:{parts.port}"
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.connect((parts.hostname, parts.port))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_head(self, method: str, path: str, **headers: str) -> None:
        self.send(request_head(method, path, self.host, **headers))

    def receive(self, size: int = 65536) -> bytes:
        return self.socket.recv(size)

    def receive_all(self) -> bytes:
        """Until the server closes the connection. Raises TimeoutError if it does not."""
        received = bytearray()
        try:
            while data := self.socket.recv(65536):
                received += data
        except ConnectionResetError:
            pass
        return bytes(received)

    def close(self) -> None:
        self.socket.close()


@contextmanager
def raw_connections(url: str, count: int = 1, receive_buffer: int = 0) -> Iterator[list[RawConnection]]:
    made: list[RawConnection] = []
    try:
        made += (RawConnection(url, receive_buffer) for _ in range(count))
        yield made
    finally:
        for connection in made:
            connection.close()
