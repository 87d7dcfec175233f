"""Memory of a rank's shadow checkpoints: it outlives the rank, and nothing of it outlives the agent.

A file of memfd_create(2) has no name. The agent holds it open and passes it to each process that takes the rank, so the
kernel frees the memory once the agent and its processes have ended, however they end.

There are two slots, which copies take in turn, or more where copies are sent to another node. A slot has a header and
data:

    state, crc of the text, length of the text | whether the loss of the next step is known, that loss | text (JSON)

The state is cleared before the data changes and set after the text is written, so a process that is killed at any
moment leaves a slot that is either complete or known not to be.
"""

import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np

from trainer.contract.cost import REPLICATED_SHADOW_COPIES, SHADOW_COPIES

SLOTS = SHADOW_COPIES
REPLICATED_SLOTS = REPLICATED_SHADOW_COPIES
HEADER_BYTES = 4 * 2**20
"""Address space, of which pages that are never written take no memory."""
_RESTORED = struct.Struct("<q")  # step that this group of workers was restored from, plus 1
_SLOT = struct.Struct("<qQQQ")  # step, state, crc, length
_LOSS = struct.Struct("<Qd")
_TEXT_AT = _SLOT.size + _LOSS.size
_EMPTY, _COPYING, _COMPLETE = range(3)
_DIGEST_WORDS = 2**17  # of 8 bytes, which are summed
PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class SlotHeader:
    """What is known of a slot. `text`: None if the slot is not complete. `next_loss`: that of the step after its own,
    None if it was not computed yet. `step`: -1 if the slot was never used."""

    slot: int
    step: int
    text: bytes | None
    next_loss: float | None


class ShadowMemory:
    """The memory of one rank: of the agent, which creates it, and of the rank's process, to which it is passed."""

    def __init__(self, descriptor: int, slots: int = SLOTS) -> None:
        self._descriptor, self.slots = descriptor, slots
        self._size = 0
        self._memory: mmap.mmap | None = None

    @classmethod
    def create(cls, name: str, slots: int = SLOTS) -> "ShadowMemory | None":
        """Return new, empty memory; None on a system without memfd_create(2). `name`: for /proc/PID/fd."""
        if not hasattr(os, "memfd_create"):
            return None
        memory = cls(os.memfd_create(f"athanor-shadow-{name}"), slots)
        os.ftruncate(memory._descriptor, PAGE)
        return memory

    def __reduce__(self) -> tuple[Any, ...]:
        """Pass the file to a process that is being started."""
        return _receive, (reduction.DupFd(self._descriptor), self.slots)

    @property
    def used_bytes(self) -> int:
        """Return the bytes of memory that it takes now."""
        return os.fstat(self._descriptor).st_blocks * 512

    @property
    def size(self) -> int:
        """Return the bytes of data that a slot has room for."""
        return self._size

    def open(self, size: int) -> list[SlotHeader]:
        """Map it, for `size` bytes of data in each slot. Return the headers of slots that are lost, because they have
        data of another size."""
        lost: list[SlotHeader] = []
        before, wanted = os.fstat(self._descriptor).st_size, -(-size // PAGE) * PAGE
        if self.attach() and self._size != wanted:
            lost = self.headers()
        self._size = wanted
        total = self._total
        if before != total:
            os.ftruncate(self._descriptor, PAGE)
            os.ftruncate(self._descriptor, total)
        self._memory = mmap.mmap(self._descriptor, total)
        return lost

    def attach(self) -> bool:
        """Map it as it is. Return whether it was opened before, by any process."""
        before = os.fstat(self._descriptor).st_size
        if before == PAGE:
            return False
        self._size = (before - PAGE) // self.slots - HEADER_BYTES
        self._memory = mmap.mmap(self._descriptor, before)
        return True

    def data(self, slot: int) -> memoryview:
        """Return the data of a slot."""
        begin = self._header_at(slot) + HEADER_BYTES
        return memoryview(self._mapped)[begin : begin + self._size]

    def place(self, slot: int) -> tuple[int, int]:
        """Return the file descriptor, and where in the file the data of a slot begins: for sendfile(2)."""
        return self._descriptor, self._header_at(slot) + HEADER_BYTES

    def headers(self) -> list[SlotHeader]:
        """Return the header of each slot."""
        return [self._header(slot) for slot in range(self.slots)]

    def begin(self, slot: int, step: int) -> None:
        """Announce that the data of a slot changes, to that of `step`."""
        _SLOT.pack_into(self._mapped, self._header_at(slot), step, _COPYING, 0, 0)
        _LOSS.pack_into(self._mapped, self._header_at(slot) + _SLOT.size, 0, 0.0)

    def finish(self, slot: int, step: int, text: bytes) -> None:
        """Declare a slot complete. Raises ValueError if the text is too long."""
        at = self._header_at(slot)
        if len(text) > HEADER_BYTES - _TEXT_AT:
            raise ValueError(f"the description of the copy of step {step} has {len(text):,} bytes")
        self._mapped[at + _TEXT_AT : at + _TEXT_AT + len(text)] = text
        crc = zlib.crc32(text)
        _SLOT.pack_into(self._mapped, at, step, _COPYING, crc, len(text))
        _SLOT.pack_into(self._mapped, at, step, _COMPLETE, crc, len(text))

    def report_loss(self, step: int, loss: float) -> None:
        """Add the loss of the step after `step` to the slot that has the state after `step`, if there is one."""
        for slot in range(self.slots):
            at = self._header_at(slot)
            of_step, state, *_ = _SLOT.unpack_from(self._mapped, at)
            if of_step == step and state != _EMPTY:
                _LOSS.pack_into(self._mapped, at + _SLOT.size, 1, loss)

    def clear(self, slot: int) -> None:
        """Declare that a slot has no copy."""
        _SLOT.pack_into(self._mapped, self._header_at(slot), -1, _EMPTY, 0, 0)

    def discard(self) -> None:
        """Declare that no slot has a copy."""
        for slot in range(self.slots):
            self.clear(slot)

    def report_restored(self, step: int | None) -> None:
        """Report to the agent from which step this group of workers was restored; None: not from here."""
        os.pwrite(self._descriptor, _RESTORED.pack(0 if step is None else step + 1), 0)

    def restored_step(self) -> int | None:
        """Return the reported step."""
        (found,) = _RESTORED.unpack(os.pread(self._descriptor, _RESTORED.size, 0))
        return found - 1 if found else None

    def close(self) -> None:
        """Let go of the memory. Call it once no process takes the rank any more."""
        os.close(self._descriptor)

    @property
    def _total(self) -> int:
        return PAGE + self.slots * (HEADER_BYTES + self._size)

    @property
    def _mapped(self) -> mmap.mmap:
        assert self._memory is not None, "opened by the rank"
        return self._memory

    def _header_at(self, slot: int) -> int:
        return PAGE + slot * (HEADER_BYTES + self._size)

    def _header(self, slot: int) -> SlotHeader:
        at = self._header_at(slot)
        step, state, crc, length = _SLOT.unpack_from(self._mapped, at)
        is_known, loss = _LOSS.unpack_from(self._mapped, at + _SLOT.size)
        text = self._mapped[at + _TEXT_AT : at + _TEXT_AT + min(length, HEADER_BYTES)]
        is_complete = state == _COMPLETE and zlib.crc32(text) == crc
        never_used = state == _EMPTY
        return SlotHeader(slot, -1 if never_used else step, text if is_complete else None, loss if is_known else None)


def digest_of(data: memoryview) -> int:
    """Return the CRC-32 of sums of words of 8 bytes: another bit changes it, unless a second one in the same MiB makes
    up for it. A CRC of all bytes takes 15 to 30 times as long. `data`: a multiple of 8 bytes."""
    words = np.frombuffer(data, dtype=np.int64)
    full = len(words) // _DIGEST_WORDS * _DIGEST_WORDS
    sums = words[:full].reshape(-1, _DIGEST_WORDS).sum(axis=1)
    if full < len(words):
        sums = np.append(sums, words[full:].sum())
    return zlib.crc32(sums.tobytes())


def _receive(duplicate: Any, slots: int) -> ShadowMemory:
    return ShadowMemory(duplicate.detach(), slots)
