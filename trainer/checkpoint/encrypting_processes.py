"""Encryption of parts in processes of their own.

Tink holds the interpreter's lock while it encrypts. In a training process each operation that training launches would
wait for it, so that steps took several times as long while a checkpoint was stored.
"""

import json
import mmap
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, StoredPart
from trainer.resilience.stop_signals import ignore_stop_signals

_ROOM = 2 * PART_PLAINTEXT_BYTES + 2**20  # of a part and of its ciphertext, which is a little longer
_OUTPUT = PART_PLAINTEXT_BYTES  # where the ciphertext begins
_NICENESS = 10  # training comes first where there are fewer cores than threads
_PART_SECONDS = 120.0  # after which a process counts as ended: a part takes a tenth of a second


class EncryptingProcesses:
    """Encrypts parts as `Encryptor.encrypt_pieces` does, `count` at a time. Safe to share between threads.

    The processes are started when the first part is encrypted, and end with this one. Where one ends before, for
    instance because memory ran out, parts are encrypted in this process.
    """

    def __init__(self, keyset: str, count: int) -> None:
        """`keyset`: see `Encryptor`."""
        self._keyset, self._count, self._own = keyset, count, Encryptor(keyset)
        self._free: queue.SimpleQueue[_Process | Encryptor] = queue.SimpleQueue()
        self._started, self._starting = False, threading.Lock()

    def encrypt_pieces(self, pieces: Iterable[memoryview], key: str) -> tuple[bytes, StoredPart]:
        """Encrypt one part, given as pieces. Return the ciphertext and its record."""
        with self._starting:
            if not self._started:
                self._started = True
                for _ in range(self._count):
                    self._free.put(_Process.start(self._keyset) or self._own)
        pieces, encryptor = list(pieces), self._free.get()
        try:
            return encryptor.encrypt_pieces(pieces, key)
        except (OSError, ValueError):
            if not isinstance(encryptor, _Process):
                raise
            encryptor.close()  # it has ended
            encryptor = self._own
            return encryptor.encrypt_pieces(pieces, key)
        finally:
            self._free.put(encryptor)

    def close(self) -> None:
        """End the processes that encrypt nothing now."""
        while not self._free.empty():
            encryptor = self._free.get()
            if isinstance(encryptor, _Process):
                encryptor.close()


class _Process:
    """A process that encrypts one part at a time. Its part and the ciphertext are in memory that both have."""

    def __init__(self, memory: int, connection: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        self._memory, self._connection, self._process = memory, connection, process
        self._replies = connection.makefile("rb")

    @classmethod
    def start(cls, keyset: str) -> "_Process | None":
        """Start one; None on a system without memfd_create(2), or where no process can be started."""
        if not hasattr(os, "memfd_create"):
            return None
        mine, theirs = socket.socketpair()
        with theirs:
            memory = os.memfd_create("athanor-part")
            os.truncate(memory, _ROOM)
            numbers = (memory, theirs.fileno())
            command = [sys.executable, "-m", "trainer.checkpoint.encrypting_processes", *map(str, numbers)]
            try:
                process = subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.DEVNULL)
            except OSError:
                os.close(memory)
                mine.close()
                return None
        mine.settimeout(_PART_SECONDS)
        with suppress(ConnectionError):  # it has ended already, which the first part will show
            mine.sendall(json.dumps(keyset).encode() + b"\n")  # not an argument: those are in /proc
        return cls(memory, mine, process)

    def encrypt_pieces(self, pieces: list[memoryview], key: str) -> tuple[bytes, StoredPart]:
        """Encrypt a part. Raise OSError or ValueError if the process has ended."""
        size = 0
        for piece in pieces:  # pwrite(2) and pread(2) copy without the interpreter's lock
            size += _write(self._memory, piece, size)
        self._connection.sendall(json.dumps([key, size]).encode() + b"\n")
        record = StoredPart.model_validate_json(self._replies.readline())
        return os.pread(self._memory, record.size, _OUTPUT), record

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._replies.close()
        self._connection.close()
        os.close(self._memory)


def _write(file: int, content: memoryview, begin: int) -> int:
    """Write everything at a place. Return its size."""
    done = 0
    while done < len(content):
        done += os.pwrite(file, content[done:], begin + done)
    return done


def main() -> None:
    """Encrypt parts until the process that has requested them closes the connection, or ends."""
    ignore_stop_signals()  # a last checkpoint is stored after them
    os.nice(_NICENESS)
    memory, connection = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    shared = memoryview(mmap.mmap(memory, _ROOM))
    with suppress(ConnectionError), connection, connection.makefile("rb") as requests:
        encryptor = Encryptor(json.loads(requests.readline()))
        for request in requests:
            key, size = json.loads(request)
            ciphertext, record = encryptor.encrypt_pieces([shared[:size]], key)
            shared[_OUTPUT : _OUTPUT + len(ciphertext)] = ciphertext
            connection.sendall(record.model_dump_json().encode() + b"\n")


if __name__ == "__main__":
    main()
