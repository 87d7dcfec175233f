"""Micro-batches for one rank, gathered ahead of need by a thread."""

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, replace

import numpy as np
import torch

from trainer.contract.launch_plan import num_micro_batches
from trainer.contract.optimisation import BatchSizeSchedule
from trainer.data.batch import MicroBatch
from trainer.data.corpus import Corpus, stacked
from trainer.data.packing import IGNORED, Rows
from trainer.data.sampler import share
from trainer.data.source import Source, select_evenly_spaced

_PREFETCHED_STEPS = 2  # steps whose micro-batches are prepared in advance
_MAX_RECORDED_STALLS = 1024  # steps whose wait is recorded until it is read


@dataclass(frozen=True)
class RankShare:
    """What part of each step a data rank computes, in micro-batches of `micro_batch` sequences at most.

    `equal`: every micro-batch has this size, as a pipeline needs, filled up with sequences that no loss is counted for.
    `copies`: ranks that are given the same sequences.
    """

    rank: int
    world_size: int
    micro_batch: int
    equal: bool = False
    copies: int = 1

    def num_micro_batches(self, sequences: int) -> int:
        """Of a step of so many."""
        return num_micro_batches(sequences, self.world_size, self.micro_batch)

    def filled(self, batch: MicroBatch) -> MicroBatch:
        """Return the batch, filled up with uncounted sequences where every micro-batch needs the same size."""
        missing = self.micro_batch - batch.tokens_BS.shape[0]
        if not self.equal or missing <= 0:
            return batch
        return batch.joined(uncounted(batch.each(lambda tensor: tensor[:1].expand(missing, -1))))


@dataclass(frozen=True)
class _Gathered:
    step: int
    batches: list[MicroBatch]
    skipped_sequences: int


class Loader:
    """`next_step(step)` gives the rank's micro-batches of a step; asked in order, they are ready beforehand.

    `stalls`: seconds that each step's asker waited, for a reader that takes them out, oldest first.
    `skipped_sequences`: this rank's share of how many sequences of the step asked for last were in damaged shards, and
    replaced; the sum over all ranks is their number.
    """

    def __init__(
        self, corpus: Corpus, schedule: BatchSizeSchedule, part: RankShare, device: torch.device, first_step: int
    ) -> None:
        self.counts_vary = corpus.is_packed
        """Whether some targets of a step are not counted, so that their number must be found out."""
        self._corpus, self._schedule, self._part, self._device = corpus, schedule, part, device
        self.stalls: deque[float] = deque(maxlen=_MAX_RECORDED_STALLS)
        self.skipped_sequences = 0.0
        self._ready: queue.Queue[_Gathered | BaseException] = queue.Queue(maxsize=_PREFETCHED_STEPS)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(first_step,), name="prefetch", daemon=True)
        self._thread.start()

    def next_step(self, step: int) -> list[MicroBatch]:
        """Micro-batches on the device. Steps are asked for one after another."""
        begin = time.monotonic()
        item = self._ready.get()
        self.stalls.append(time.monotonic() - begin)
        if isinstance(item, BaseException):
            raise item
        assert item.step == step, f"step {step} asked for, {item.step} prepared"
        self.skipped_sequences = item.skipped_sequences / self._part.copies
        return [batch.to(self._device) for batch in item.batches]

    def close(self) -> None:
        """Stop the thread that reads ahead."""
        self._closed.set()
        while self._thread.is_alive():
            try:
                self._ready.get_nowait()
            except queue.Empty:
                self._thread.join(0.05)
        self._corpus.close()

    def _fill(self, step: int) -> None:
        try:
            while not self._closed.is_set():
                self._ready.put(self._gather(step))
                step += 1
        except Exception as error:  # noqa: BLE001 - raised again where the batch is asked for
            self._ready.put(error)

    def _gather(self, step: int) -> _Gathered:
        first, sequences = self._schedule.sequences_before(step), self._schedule.sequences_at(step)
        self._corpus.prefetch(first)
        skipped = self._corpus.skipped_rows
        start, stop = share(sequences, self._part.world_size, self._part.rank)
        batches, count = [], self._part.num_micro_batches(sequences)
        for number in range(count):
            low, high = share(stop - start, count, number)
            rows = self._corpus.rows(np.arange(first + start + low, first + start + high, dtype=np.int64))
            batch = self._part.filled(micro_batch(rows))
            batches.append(batch.pinned() if self._device.type == "cuda" else batch)
        return _Gathered(step, batches, self._corpus.skipped_rows - skipped)


def micro_batch(rows: Rows) -> MicroBatch:
    """Return rows as tensors."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in vars(rows).items() if a is not None}
    return MicroBatch(**tensors)


def uncounted(batch: MicroBatch) -> MicroBatch:
    """Return the same tokens with no loss counted for them."""
    return replace(batch, targets_BS=torch.full_like(batch.targets_BS, IGNORED))


def validation_batches(source: Source, count: int, part: RankShare) -> list[MicroBatch]:
    """Return this rank's share of `count` evenly spaced rows of a source.

    Every rank gets the same number of batches, as sharded models need; a rank with fewer sequences has some in which
    nothing is counted.
    """
    chosen = select_evenly_spaced(source, count)
    start, stop = share(len(chosen), part.world_size, part.rank)
    mine, longest = chosen[start:stop], -(-len(chosen) // part.world_size)
    batches = []
    for low in range(0, longest, part.micro_batch):
        wanted = mine[low : min(low + part.micro_batch, longest)]
        batch = micro_batch(stacked([source.row(shard, row) for shard, row in wanted or chosen[:1]]))
        batches.append(part.filled(batch if wanted else uncounted(batch)))
    return batches
