"""A page shared by the agent and its workers: where each rank is, and what all ranks are asked for.

Written once a step, so it is plain memory: no lock, no system call; each field has one writer.
"""

import mmap
import os
import struct
from pathlib import Path

from trainer.contract.run import ProfileRequest, StopRequest

PHASES = ("starting", "rendezvous", "model", "load", "evaluation", "training", "checkpoint", "export", "done")
_STOPS: tuple[StopRequest | None, ...] = (None, *StopRequest)
_SLOT = struct.Struct("<qqQQ")  # step, phase, number of reports, steps that this process has finished
_EXIT = struct.Struct("<q")  # after the slots: the status with which each rank exits, plus 1
_DESCRIPTION_AT = 1
_PROFILE = struct.Struct("<Q")  # number and steps in one word, which is written atomically
_PROFILE_AT = 8
_MICRO_BATCH = struct.Struct("<I")
_MICRO_BATCH_AT = 4
_AGENT = struct.Struct("<II")  # pid of the agent, and how often it has looked at its ranks
_AGENT_AT = 16
_HEADER = 24


class SharedStatus:
    """Shared memory of agent and workers: step and phase of each local rank, the size of micro-batches, and requests to
    stop, to profile, or to describe what each rank is doing."""

    def __init__(self, path: Path, num_slots: int, *, create: bool = False) -> None:
        """One slot for each local rank. The agent creates, the workers open."""
        self._exits_at = _HEADER + num_slots * _SLOT.size
        size = self._exits_at + num_slots * _EXIT.size
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        if create:
            for slot in range(num_slots):
                self.report(slot, -1, "starting")

    @property
    def agent_pid(self) -> int:
        """Return the pid of the agent, 0 before it has looked at its ranks, or where there is none."""
        return int(_AGENT.unpack_from(self._memory, _AGENT_AT)[0])

    def agent_looks(self) -> int:
        """Return how often the agent has looked at its ranks."""
        return int(_AGENT.unpack_from(self._memory, _AGENT_AT)[1])

    def report_agent_look(self) -> None:
        """Report that the agent, which is this process, looks at its ranks."""
        _AGENT.pack_into(self._memory, _AGENT_AT, os.getpid(), (self.agent_looks() + 1) % 2**32)

    def report(self, slot: int, step: int, phase: str, num_finished: int = 0) -> None:
        """`step`: last finished one, -1 before the first. `num_finished`: steps that this process has finished."""
        at = _HEADER + slot * _SLOT.size
        reports = _SLOT.unpack_from(self._memory, at)[2]
        _SLOT.pack_into(self._memory, at, step, PHASES.index(phase), reports + 1, num_finished)

    def read(self, slot: int) -> tuple[int, str]:
        """Return (last finished step, phase) of a local rank."""
        step, phase, _, _ = _SLOT.unpack_from(self._memory, _HEADER + slot * _SLOT.size)
        return step, PHASES[phase]

    def progress(self, slot: int) -> tuple[int, int]:
        """Return (number of reports, steps that the process has finished) of a local rank: it has made progress if
        there are more reports than before."""
        _, _, reports, finished = _SLOT.unpack_from(self._memory, _HEADER + slot * _SLOT.size)
        return reports, finished

    def report_exit(self, slot: int, status: int) -> None:
        """Report the status with which a local rank is about to exit."""
        _EXIT.pack_into(self._memory, self._exits_at + slot * _EXIT.size, status + 1)

    def exit_status(self, slot: int) -> int | None:
        """Return the reported status, None if there is none."""
        (found,) = _EXIT.unpack_from(self._memory, self._exits_at + slot * _EXIT.size)
        return found - 1 if found else None

    def report_micro_batch(self, sequences: int) -> None:
        """Report the size of micro-batches, which is equal on all ranks."""
        _MICRO_BATCH.pack_into(self._memory, _MICRO_BATCH_AT, sequences)

    def micro_batch(self) -> int | None:
        """Return the sequences of a micro-batch, None before the workers have chosen the size."""
        (sequences,) = _MICRO_BATCH.unpack_from(self._memory, _MICRO_BATCH_AT)
        return sequences or None

    def request_stop(self, stop: StopRequest) -> None:
        """Ask the workers to stop."""
        self._memory[0] = _STOPS.index(stop)

    def stop_requested(self) -> StopRequest | None:
        """Return the requested stop, None if there is none."""
        return _STOPS[self._memory[0]]

    def request_description(self) -> int:
        """Ask each rank to describe what it is doing. Return the number of the request, from 1 to 255."""
        number = self._memory[_DESCRIPTION_AT] % 255 + 1
        self._memory[_DESCRIPTION_AT] = number
        return number

    def description_requested(self) -> int:
        """Return the number of the newest request for a description, 0 before the first."""
        return self._memory[_DESCRIPTION_AT]

    def request_profile(self, profile: ProfileRequest) -> None:
        """Ask the workers for a profile."""
        _PROFILE.pack_into(self._memory, _PROFILE_AT, profile.number << 8 | profile.steps)

    def profile_requested(self) -> tuple[int, int]:
        """Return (number, steps) of the newest request; (0, 0) before the first."""
        (word,) = _PROFILE.unpack_from(self._memory, _PROFILE_AT)
        return word >> 8, word & 0xFF
