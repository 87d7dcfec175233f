"""The agent's server of copies: it holds those of another node's ranks in memory, and gives them to ranks that resume.

Ranks send and fetch copies themselves (`trainer.resilience.peer_link`); agents need no connection to each other.
"""

import contextlib
import logging
import socket
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from trainer.contract.cost import REPLICAS
from trainer.resilience.control_groups import available_memory
from trainer.resilience.peer_link import (
    PeerError,
    answer_challenge,
    receive_data,
    receive_message,
    send_data,
    send_message,
    set_limits,
)
from trainer.resilience.replicas import CopyId
from trainer.resilience.shadow_memory import ShadowMemory, digest_of

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 256


@dataclass
class _Replica:
    """Copies of a rank, whose memory is freed with this object. `round`: in which the newest was made. `of_slots`: the
    copy in each complete slot; `sizes`: its bytes. `is_adopted`: it was the memory of a rank of this node."""

    rank: int
    memory: ShadowMemory
    round: int
    of_slots: dict[int, CopyId] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    newest: int = -1
    is_adopted: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        weakref.finalize(self, self.memory.close)


class ReplicaServer:
    """Listens on a free port of `host`. `expected_ranks`: as many ranks send their copies to this node in each round;
    once all of them have, those of earlier rounds are dropped."""

    def __init__(self, host: str, secret: bytes, expected_ranks: int) -> None:
        """Begin to listen. Raises OSError if that is not possible on `host`."""
        self._secret, self._expected_ranks = secret, expected_ranks
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(address[:2], family=family, backlog=MAX_CONNECTIONS)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._replicas: list[_Replica] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._round, self._is_closed = 0, False
        threading.Thread(target=self._accept, name="replicas", daemon=True).start()

    def begin_round(self, round_: int) -> None:
        """Refuse copies of earlier rounds from now on."""
        with self._lock:
            self._round = round_

    def held(self) -> list[tuple[int, CopyId]]:
        """Return (rank, copy) of all complete copies."""
        with self._lock:
            return [(each.rank, copy) for each in self._replicas for copy in each.of_slots.values()]

    def held_bytes(self, *, with_adopted: bool = False) -> int:
        """Return the bytes of memory that copies take which other nodes have sent; or all that are held."""
        with self._lock:
            return sum(each.memory.used_bytes for each in self._replicas if with_adopted or not each.is_adopted)

    def adopt(self, rank: int, memory: ShadowMemory, copies: dict[int, CopyId], size: int) -> None:
        """Hold the memory of a rank of this node that another node has from now on. `copies`: by slot."""
        sizes = dict.fromkeys(copies, size)
        with self._lock:
            self._replicas.append(_Replica(rank, memory, self._round, copies, sizes, is_adopted=True))

    def drop(self) -> None:
        """Free all copies."""
        with self._lock:
            self._replicas = []

    def close(self) -> None:
        """Stop listening, and free all copies."""
        with self._lock:
            self._is_closed = True
        with contextlib.suppress(OSError):  # it was closed before
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the wait for connections, which `close` does not
        self._listener.close()
        self.drop()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # it is closed
            if self._slots.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), name="replica", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                set_limits(connection)
                if answer_challenge(connection, self._secret):
                    self._answer(connection, receive_message(connection))
        except (OSError, ValueError, KeyError) as error:
            logger.info("a copy was not transferred: %r", error)
        finally:
            self._slots.release()

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        try:
            if request["operation"] == "push":
                self._receive(connection, request)
            elif request["operation"] == "release":
                self._release(int(request["round"]))
                send_message(connection, {})
            else:
                self._send(connection, request)
        except PeerError as error:
            send_message(connection, {"refused": str(error)})

    def _receive(self, connection: socket.socket, request: dict[str, Any]) -> None:
        size, copy, text = int(request["size"]), CopyId(*request["copy"]), str(request["text"]).encode()
        replica = self._replica_for(int(request["rank"]), size, int(request["round"]))
        with replica.lock:
            send_message(connection, {})
            slot = (replica.newest + 1) % REPLICAS
            replica.of_slots.pop(slot, None)
            replica.memory.begin(slot, copy.step)
            data = replica.memory.data(slot)[:size]
            receive_data(connection, data)
            if digest_of(data) != request["digest"]:
                raise PeerError("its content does not have its digest")
            replica.memory.finish(slot, copy.step, text)
            replica.of_slots[slot], replica.sizes[slot], replica.newest = copy, size, slot
            replica.round = int(request["round"])
        self._drop_earlier_rounds()
        send_message(connection, {})

    def _replica_for(self, rank: int, size: int, round_: int) -> _Replica:
        """Return where the copies of a rank go. Raises PeerError if this node does not take them."""
        with self._lock:
            if self._is_closed or round_ < self._round:
                raise PeerError("the run has begun another rendezvous round")
            for each in self._replicas:
                if each.rank == rank and not each.is_adopted and each.memory.size >= size:
                    return each
            available = available_memory()
            if available is not None and available < REPLICAS * size:
                raise PeerError(
                    f"{REPLICAS} copies need {REPLICAS * size / 2**30:.1f} GiB, and the node has "
                    f"{available / 2**30:.1f} GiB available"
                )
            memory = ShadowMemory.create(f"replica-{rank}", REPLICAS)
            assert memory is not None, "a sender has such memory itself"
            memory.open(size)
            self._replicas.append(_Replica(rank, memory, round_))
            return self._replicas[-1]

    def _release(self, round_: int) -> None:
        with self._lock:
            if round_ == self._round:
                self._replicas = []

    def _drop_earlier_rounds(self) -> None:
        with self._lock:
            newest = max(each.round for each in self._replicas) if self._replicas else 0
            current = [each for each in self._replicas if each.round == newest and each.of_slots]
            if len({each.rank for each in current if not each.is_adopted}) < self._expected_ranks:
                return
            self._replicas = [each for each in self._replicas if each.round >= newest]

    def _send(self, connection: socket.socket, request: dict[str, Any]) -> None:
        rank, copy, size = int(request["rank"]), CopyId(*request["copy"]), int(request["size"])
        with self._lock:
            found = next((r for r in self._replicas if r.rank == rank and copy in r.of_slots.values()), None)
        if found is None:
            raise PeerError("its node does not hold it any more")
        with found.lock:
            slot = next((slot for slot, each in found.of_slots.items() if each == copy), None)
            header = found.memory.headers()[slot] if slot is not None else None
            if slot is None or header is None or header.text is None:
                raise PeerError("its node does not hold it any more")
            if found.sizes[slot] < size:
                raise PeerError(f"it has {found.sizes[slot]:,} bytes instead of {size:,}")
            send_message(connection, {"text": header.text.decode(), "next_loss": header.next_loss})
            send_data(connection, found.memory, slot, size)
