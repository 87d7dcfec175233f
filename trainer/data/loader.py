"""Micro-batches of one rank, prepared in advance by a thread."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trainer.contract.launch_plan import num_micro_batches
from trainer.contract.optimisation import BatchSizeSchedule
from trainer.contract.rollback import Rollback, first_sequence
from trainer.data.batch import MicroBatch
from trainer.data.corpus import Corpus, concatenate_rows
from trainer.data.packing import IGNORED, Rows
from trainer.data.sampler import split_range
from trainer.data.source import Source, select_evenly_spaced

_PREFETCHED_STEPS = 2  # steps whose micro-batches are prepared in advance
_MAX_RECORDED_STALLS = 1024  # steps whose wait is recorded until it is read


@dataclass(frozen=True)
class RankShare:
    """A data rank's share of each step, in micro-batches of at most `micro_batch` sequences.

    `equal`: every micro-batch has exactly this size, as a pipeline needs, padded with sequences without targets.
    `copies`: number of ranks that get the same sequences.
    """

    rank: int
    world_size: int
    micro_batch: int
    equal: bool = False
    copies: int = 1

    def moved(self, shift: int) -> "RankShare":
        """Return the share of the data rank `shift` places further."""
        return replace(self, rank=(self.rank + shift) % self.world_size)

    def num_micro_batches(self, sequences: int) -> int:
        """Return the number of micro-batches of a step of `sequences` over all data ranks."""
        return num_micro_batches(sequences, self.world_size, self.micro_batch)

    def micro_batches(self, sequences: int) -> list[tuple[int, int]]:
        """Return where this rank's micro-batches of a step of `sequences` begin and end among the step's sequences."""
        start, stop = split_range(sequences, self.world_size, self.rank)
        count = self.num_micro_batches(sequences)
        bounds = (split_range(stop - start, count, number) for number in range(count))
        return [(start + low, start + high) for low, high in bounds]

    def at_place(self, values_M: Tensor) -> Tensor:
        """Return a value of each of this rank's micro-batches at its place among those of all data ranks, by rank, 0 at
        the others': [world_size * M]."""
        values = values_M.new_zeros(self.world_size, len(values_M))
        values[self.rank] = values_M
        return values.flatten()

    def bounds_at(self, sequences: int, place: int) -> tuple[int, int]:
        """Return where the micro-batch at `place` among those of all data ranks begins and ends among the sequences of
        a step of `sequences`."""
        rank, number = divmod(place, self.num_micro_batches(sequences))
        return replace(self, rank=rank).micro_batches(sequences)[number]

    def filled(self, batch: MicroBatch) -> MicroBatch:
        """Return the batch, padded with sequences without targets if all micro-batches need the same size."""
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
    """Loads the micro-batches of this rank; a thread prepares those of the next steps.

    `stalls`: seconds that each `next_step` has waited, oldest first; the reader removes them. `skipped_sequences`:
    number of sequences of the last step that were replaced because their shard is damaged, divided by `copies`, so that
    the sum over all ranks counts each once.
    """

    def __init__(
        self,
        corpus: Corpus,
        schedule: BatchSizeSchedule,
        part: RankShare,
        device: torch.device,
        first_step: int,
        rollbacks: Sequence[Rollback] = (),
        reference: Callable[[Sequence[tuple[int, int, int]]], Tensor] | None = None,
    ) -> None:
        """Start the thread. `reference`: returns the `reference_BA` of sequences by their places in the corpus."""
        self.counts_vary = corpus.is_packed
        """Whether some targets are IGNORED, so that their number differs from step to step."""
        self._corpus, self._schedule, self._part, self._device = corpus, schedule, part, device
        self._rollbacks, self._reference = rollbacks, reference
        self.stalls: deque[float] = deque(maxlen=_MAX_RECORDED_STALLS)
        self.skipped_sequences = 0.0
        self._ready: queue.Queue[_Gathered | BaseException] = queue.Queue(maxsize=_PREFETCHED_STEPS)
        self._closed, self._reading = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._fill, args=(first_step,), name="prefetch", daemon=True)
        self._thread.start()

    def next_step(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of `step` on the device. Call it for consecutive steps."""
        begin = time.monotonic()
        item = self._ready.get()
        self.stalls.append(time.monotonic() - begin)
        if isinstance(item, BaseException):
            raise item
        assert item.step == step, f"step {step} requested, {item.step} prepared"
        self.skipped_sequences = item.skipped_sequences / self._part.copies
        return [batch.to(self._device) for batch in item.batches]

    def batches_of(self, step: int, part: RankShare) -> list[MicroBatch]:
        """Return the micro-batches of any data rank for `step`, on the device. They are read now."""
        with self._reading:
            return [batch.to(self._device) for batch in self._read(step, part)]

    def sequences(self, step: int) -> tuple[int, int]:
        """Return the numbers of the first and last sequence of a step, in the order of the run's data."""
        first = first_sequence(step, self._schedule, self._rollbacks)
        return first, first + self._schedule.sequences_at(step) - 1

    def places(self, step: int, place: int) -> list[tuple[str, str, int]]:
        """Return (source, shard, row in the shard) of each sequence of the micro-batch at `place` among those of all
        data ranks. A row of a damaged shard that was replaced is named itself."""
        first, last = self.sequences(step)
        samples = self._corpus.in_shard_order(np.arange(first, last + 1, dtype=np.int64))
        begin, end = self._part.bounds_at(len(samples), place)
        return self._corpus.named_places(samples[begin:end])

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
        first, sequences = first_sequence(step, self._schedule, self._rollbacks), self._schedule.sequences_at(step)
        bounds = self._part.micro_batches(sequences)
        with self._reading:
            self._corpus.prefetch(first, sequences, bounds[0][0], bounds[-1][1])
            skipped = self._corpus.skipped_rows
            return _Gathered(step, self._read(step, self._part), self._corpus.skipped_rows - skipped)

    def _read(self, step: int, part: RankShare) -> list[MicroBatch]:
        first, sequences = first_sequence(step, self._schedule, self._rollbacks), self._schedule.sequences_at(step)
        samples = self._corpus.in_shard_order(np.arange(first, first + sequences, dtype=np.int64))
        batches = []
        for begin, end in part.micro_batches(sequences):
            batch = micro_batch(self._corpus.rows(samples[begin:end]))
            if self._reference is not None:
                batch = replace(batch, reference_BA=self._reference(self._corpus.places(samples[begin:end])))
            batch = part.filled(batch)
            batches.append(batch.pinned() if self._device.type == "cuda" else batch)
        return batches


def micro_batch(rows: Rows) -> MicroBatch:
    """Return rows as tensors."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in vars(rows).items() if a is not None}
    return MicroBatch(**tensors)


def uncounted(batch: MicroBatch) -> MicroBatch:
    """Return the same tokens without targets."""
    return replace(batch, targets_BS=torch.full_like(batch.targets_BS, IGNORED))


def validation_batches(source: Source, count: int, part: RankShare) -> list[MicroBatch]:
    """Return this rank's share of `count` evenly spaced rows of a source.

    Every rank gets the same number of batches, as collectives need; a rank with fewer sequences gets batches without
    targets.
    """
    chosen = select_evenly_spaced(source, count)
    start, stop = split_range(len(chosen), part.world_size, part.rank)
    mine, longest = chosen[start:stop], -(-len(chosen) // part.world_size)
    batches = []
    for low in range(0, longest, part.micro_batch):
        wanted = mine[low : min(low + part.micro_batch, longest)]
        batch = micro_batch(concatenate_rows([source.row(shard, row) for shard, row in wanted or chosen[:1]]))
        batches.append(part.filled(batch if wanted else uncounted(batch)))
    return batches
