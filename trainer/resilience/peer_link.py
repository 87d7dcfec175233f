"""How copies of ranks' states move between nodes: messages over TCP between a rank and the agent of another node.

Both sides show that they know the secret of the attempt before anything else is sent. The content is neither encrypted
nor protected from one who can change packets, as are the parameters and gradients that ranks exchange on this network;
its digest shows damage. A message is its length in 4 bytes, and JSON; the data of a copy follows as it is.
"""

import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import Any

from trainer.resilience.replicas import CopyId
from trainer.resilience.shadow_memory import HEADER_BYTES, ShadowMemory

SILENCE_SECONDS = 10
"""How long either side waits for the other to send or take anything."""
_NONCE_BYTES, _PROOF_BYTES = 32, 32
_MAX_MESSAGE_BYTES = 2 * HEADER_BYTES  # of which the text of a copy, in which JSON escapes quotes, is most
_PIECE_BYTES = 2**30  # of one call: it gives up the interpreter's lock, and needs it again after the call
_LENGTH = struct.Struct("<I")


class PeerError(Exception):
    """Why the other side does not take or does not send a copy."""


@dataclass(frozen=True)
class Peers:
    """What a rank knows of the copies that agents hold. `host`, `port`: of its own agent's server; port 0 if it cannot
    listen. `held`: what its agent has in memory, (rank, copy). `held_bytes`: the memory for copies that those of this
    round replace: what other nodes have sent; where none is sent any more, all. `domains`: of all nodes, by node rank,
    what may fail together with each; empty but on the first node."""

    host: str
    port: int
    secret: bytes = field(repr=False)
    held: list[tuple[int, CopyId]]
    held_bytes: int
    domains: list[tuple[str, ...]]


def secret_of(job_key: str, attempt_id: str) -> bytes:
    """Return what only the agents and ranks of an attempt know: the platform gives them the key of their job."""
    return hmac.digest(job_key.encode(), b"athanor peer copies\n" + attempt_id.encode(), "sha256")


def push(
    address: tuple[str, int], secret: bytes, memory: ShadowMemory, slot: int, size: int, header: dict[str, Any]
) -> None:
    """Send the copy in a slot, of `size` bytes, to an agent, and wait until it has verified it.

    `header`: `rank`, `copy` (a CopyId as a tuple), `round`, `text`, `digest`. Raises PeerError, and OSError.
    """
    with _connect(address, secret) as connection:
        send_message(connection, {"operation": "push", "size": size, **header})
        _check(receive_message(connection))  # whether it has the memory
        send_data(connection, memory, slot, size)
        _check(receive_message(connection))


def fetch(
    address: tuple[str, int], secret: bytes, rank: int, copy: CopyId, data: memoryview
) -> tuple[bytes, float | None]:
    """Read the beginning of a rank's copy into `data` from the memory of an agent. Return its text, and the loss of the
    next step if that is known there. Raises PeerError and OSError."""
    with _connect(address, secret) as connection:
        send_message(connection, {"operation": "fetch", "rank": rank, "copy": astuple(copy), "size": len(data)})
        reply = receive_message(connection)
        _check(reply)
        receive_data(connection, data)
        return str(reply["text"]).encode(), reply["next_loss"]


def release(address: tuple[str, int], secret: bytes, round_: int) -> None:
    """Let an agent free all copies that it holds, if this is still the round. Raises PeerError and OSError."""
    with _connect(address, secret) as connection:
        send_message(connection, {"operation": "release", "round": round_})
        _check(receive_message(connection))


def answer_challenge(connection: socket.socket, secret: bytes) -> bool:
    """Do the server's part of showing the secret to each other. Return whether the client knows it."""
    challenge = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(challenge)
    answer = _receive_bytes(connection, _NONCE_BYTES + _PROOF_BYTES)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, b"client", challenge, nonce)):
        return False
    connection.sendall(_proof(secret, b"server", challenge, nonce))
    return True


def set_limits(connection: socket.socket) -> None:
    """Let the kernel end a wait for the other side after SILENCE_SECONDS. Python's own timeout would make the socket
    non-blocking, so that a large transfer takes the interpreter's lock for each piece that fits into a buffer."""
    limit = struct.pack("@ll", SILENCE_SECONDS, 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message."""
    content = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(content)) + content)


def receive_message(connection: socket.socket) -> dict[str, Any]:
    """Return the next message. Raises OSError."""
    (length,) = _LENGTH.unpack(_receive_bytes(connection, _LENGTH.size))
    if length > _MAX_MESSAGE_BYTES:
        raise ConnectionError(f"a message of {length:,} bytes")
    message: dict[str, Any] = json.loads(_receive_bytes(connection, length))
    return message


def send_data(connection: socket.socket, memory: ShadowMemory, slot: int, size: int) -> None:
    """Send the first `size` bytes of a slot. Raises OSError."""
    descriptor, begin = memory.place(slot)
    sent = 0
    while sent < size:
        count = os.sendfile(connection.fileno(), descriptor, begin + sent, min(size - sent, _PIECE_BYTES))
        if not count:
            raise OSError(f"the memory of the copy ends after {sent:,} of {size:,} bytes")
        sent += count


def receive_data(connection: socket.socket, data: memoryview) -> None:
    """Fill `data`. Raises OSError."""
    received = 0
    while received < len(data):
        piece = data[received : received + _PIECE_BYTES]
        count = connection.recv_into(piece, len(piece), socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the other side has closed the connection")
        received += count


@contextmanager
def _connect(address: tuple[str, int], secret: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=SILENCE_SECONDS) as connection:
        connection.settimeout(None)
        set_limits(connection)
        try:
            challenge, nonce = _receive_bytes(connection, _NONCE_BYTES), secrets.token_bytes(_NONCE_BYTES)
            connection.sendall(nonce + _proof(secret, b"client", challenge, nonce))
            proof = _receive_bytes(connection, _PROOF_BYTES)
            if not hmac.compare_digest(proof, _proof(secret, b"server", challenge, nonce)):
                raise PeerError("it does not know the secret of this attempt")
            yield connection
        except BlockingIOError as error:
            raise TimeoutError(f"the other node has sent or taken nothing for {SILENCE_SECONDS} s") from error


def _proof(secret: bytes, role: bytes, challenge: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, role + challenge + nonce, hashlib.sha256)


def _receive_bytes(connection: socket.socket, count: int) -> bytes:
    content = bytearray(count)
    receive_data(connection, memoryview(content))
    return bytes(content)


def _check(reply: dict[str, Any]) -> None:
    if "refused" in reply:
        raise PeerError(str(reply["refused"]))
