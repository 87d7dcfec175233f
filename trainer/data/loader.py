"""Batches for one rank: micro-batches of (inputs, targets), gathered ahead of need by a thread."""

import queue
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.contract.plan import num_micro_batches
from trainer.data.batch import IGNORED, MicroBatch
from trainer.data.sampler import Sampler, num_sequences, share
from trainer.data.shards import open_split

_AHEAD = 2  # steps gathered ahead


@dataclass(frozen=True)
class RankShare:
    """What part of each step a data rank computes, in micro-batches of `micro_batch` sequences at most.

    `equal`: every micro-batch has this size, as a pipeline needs, filled up with sequences that no loss is counted for.
    """

    rank: int
    world_size: int
    micro_batch: int
    equal: bool = False

    def num_micro_batches(self, sequences: int) -> int:
        """Of a step of so many."""
        return num_micro_batches(sequences, self.world_size, self.micro_batch)

    def filled(self, batch: MicroBatch) -> MicroBatch:
        missing = self.micro_batch - batch.tokens_BS.shape[0]
        if not self.equal or missing <= 0:
            return batch
        return batch.joined(uncounted(batch.each(lambda tensor: tensor[:1].expand(missing, -1))))


class Loader:
    """`next_step(step)` gives the rank's micro-batches of a step; asked in order, they are ready beforehand."""

    def __init__(
        self,
        folder: Path,
        sampler: Sampler,
        part: RankShare,
        sequence_length: int,
        device: torch.device,
        first_step: int,
    ) -> None:
        self.counts_vary = False
        """Whether some targets of a step are not counted, so that their number must be found out."""
        self._tokens = open_split(folder, "train")
        self._sampler, self._part, self._length, self._device = sampler, part, sequence_length, device
        self._ready: queue.Queue[tuple[int, list[MicroBatch]] | BaseException] = queue.Queue(maxsize=_AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(first_step,), name="prefetch", daemon=True)
        self._thread.start()

    def next_step(self, step: int) -> list[MicroBatch]:
        """Micro-batches on the device. Steps are asked for one after another."""
        item = self._ready.get()
        if isinstance(item, BaseException):
            raise item
        prepared, batches = item
        assert prepared == step, f"step {step} asked for, {prepared} prepared"
        return [batch.to(self._device) for batch in batches]

    def close(self) -> None:
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.05)

    def _fill(self, step: int) -> None:
        try:
            while not self._closed.is_set():
                self._ready.put((step, self._gather(step)))
                step += 1
        except Exception as error:  # noqa: BLE001 - raised again where the batch is asked for
            self._ready.put(error)

    def _gather(self, step: int) -> list[MicroBatch]:
        sequences = self._sampler.sizes.at(step)
        start, stop = share(sequences, self._part.world_size, self._part.rank)
        batches, count = [], self._part.num_micro_batches(sequences)
        for number in range(count):
            low, high = share(stop - start, count, number)
            chosen = self._sampler.sequences(step, start + low, start + high)
            batch = self._part.filled(gather_sequences(self._tokens, chosen, self._length))
            batches.append(batch.pinned() if self._device.type == "cuda" else batch)
        return batches


def gather_sequences(tokens: NDArray[np.integer], chosen: NDArray[np.int64], length: int) -> MicroBatch:
    """Sequences `chosen` with their next tokens as targets, each [len(chosen), length], on the CPU."""
    offsets = chosen[:, None] * length + np.arange(length + 1, dtype=np.int64)
    batch = torch.from_numpy(tokens[offsets].astype(np.int64))
    return MicroBatch(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())


def uncounted(batch: MicroBatch) -> MicroBatch:
    """The same tokens, with no loss counted for them."""
    return replace(batch, targets_BS=torch.full_like(batch.targets_BS, IGNORED))


def validation_batches(folder: Path, count: int, part: RankShare, sequence_length: int) -> list[MicroBatch]:
    """This rank's share of `count` evenly spaced validation sequences.

    Every rank gets the same number of batches, as sharded models need; a rank with fewer sequences has some in which
    nothing is counted.
    """
    tokens = open_split(folder, "validation")
    available = num_sequences(len(tokens), sequence_length)
    count = min(count, available)
    chosen = (np.arange(count, dtype=np.int64) * available) // count
    start, stop = share(count, part.world_size, part.rank)
    mine, longest = chosen[start:stop], -(-count // part.world_size)
    batches = []
    for low in range(0, longest, part.micro_batch):
        wanted = mine[low : min(low + part.micro_batch, longest)]
        batch = gather_sequences(tokens, wanted if len(wanted) else chosen[:1], sequence_length)
        batches.append(part.filled(batch if len(wanted) else uncounted(batch)))
    return batches
