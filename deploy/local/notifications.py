"""Receives the messages by which services say that they are ready and alive: sd_notify(3), as systemd does."""

import secrets
import socket
import struct

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_MESSAGE_BYTES = 4096


class NotifySocket:
    """A datagram socket. The kernel says which process sent a message, so that no other one can speak for a service."""

    def __init__(self) -> None:
        self.address = f"@athanor-{secrets.token_hex(16)}"  # abstract: on no disk that may be full
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind("\0" + self.address[1:])

    def fileno(self) -> int:
        """Return the file descriptor, for select."""
        return self._socket.fileno()

    def read(self) -> list[tuple[int, list[str]]]:
        """Return (pid, states) of all messages that have arrived."""
        found: list[tuple[int, list[str]]] = []
        while True:
            try:
                message, ancillary, _, _ = self._socket.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except BlockingIOError:
                return found
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    found.append((_CREDENTIALS.unpack(data)[0], message.decode(errors="replace").splitlines()))
