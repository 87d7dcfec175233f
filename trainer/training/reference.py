"""The log-probabilities of answers by the reference of preference training, computed before the first step."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.contract.rollback import Rollback, first_sequence
from trainer.contract.training import TrainingSpec
from trainer.data.corpus import Corpus
from trainer.data.loader import RankShare, micro_batch, uncounted
from trainer.data.sampler import split_range
from trainer.parallel.mesh import all_reduce_sum
from trainer.parallel.parallelize import ParallelModel
from trainer.reporting.reporter import Reporter
from trainer.training.evaluation import HeldOutSet
from trainer.training.measurements import highest

Place = tuple[int, int, int]  # source, shard, row in the shard


class ReferenceTable:
    """The sums of each answer's log-probabilities by the reference, by sequence, equal on all ranks.

    `sums_NA`: of each sequence and each document in it, on the CPU.
    """

    def __init__(self, places: Sequence[Place], sums_NA: Tensor) -> None:
        self._number = {place: number for number, place in enumerate(places)}
        self._sums_NA = sums_NA

    def of(self, places: Sequence[Place]) -> Tensor:
        """Return the sums of these sequences, [B, A]."""
        return self._sums_NA[[self._number[place] for place in places]]


def compute_reference(
    model: ParallelModel,
    corpus: Corpus,
    training: TrainingSpec,
    part: RankShare,
    rollbacks: Sequence[Rollback],
    reporter: Reporter,
) -> ReferenceTable:
    """Compute the table of all sequences of the run, with a model that has the weights of the reference; a collective.
    Each data rank computes its share of them."""
    schedule = training.batch_size_schedule
    last = max(
        first_sequence(step, schedule, rollbacks) + schedule.sequences_at(step) for step in range(training.steps)
    )
    samples: NDArray[np.int64] = np.arange(last, dtype=np.int64)
    sample_of = {place: int(sample) for place, sample in zip(corpus.places(samples), samples, strict=True)}
    places = sorted(sample_of)
    start, stop = split_range(len(places), part.world_size, part.rank)
    longest = -(-len(places) // part.world_size)
    device = model.weights.mesh.device
    found: list[Tensor] = []
    for low in range(0, longest, part.micro_batch):
        mine = places[start:stop][low : low + part.micro_batch]
        rows = corpus.rows(np.array([sample_of[place] for place in mine or places[:1]], dtype=np.int64))
        batch = micro_batch(rows)
        sums_BA = model.reference_sums((batch if mine else uncounted(batch)).to(device)).flatten(1).cpu()
        found += [sums_A[: _num_documents(sums_A)] for sums_A in sums_BA[: len(mine)]]
        reporter.report_progress()
    width = int(highest(float(max(map(len, found), default=0)), model.weights.mesh))
    sums_NA = torch.zeros(len(places), width)
    for number, sums_A in enumerate(found, start):
        sums_NA[number, : len(sums_A)] = sums_A
    group = model.weights.mesh.group("replicate", "shard")
    return ReferenceTable(places, all_reduce_sum(sums_NA.to(device), group).cpu())


def _num_documents(sums_A: Tensor) -> int:
    """Return the number of documents of a sequence up to the last one with a sum, an even number."""
    last = int(sums_A.nonzero().max()) if sums_A.any() else -1
    return last + 1 + (last + 1) % 2


def add_reference(model: ParallelModel, held_out: HeldOutSet, reporter: Reporter) -> HeldOutSet:
    """Return the set with the sums by the reference in its batches; a collective, as `compute_reference`."""
    batches = []
    for batch in held_out.batches:
        sums_BA = model.reference_sums(batch.to(model.weights.mesh.device)).flatten(1).cpu()
        batches.append(replace(batch, reference_BA=sums_BA))
        reporter.report_progress()
    return replace(held_out, batches=batches)
