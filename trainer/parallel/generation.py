"""Generation on any mesh: all ranks compute what their parts of the model are for, one of them chooses.

The sequence is not cut: it grows by a token at a time. So the context ranks compute alike, as the data ranks do, and
the tensor ranks add their parts up where in training each has a part of the sum.

Shape suffixes: B rows, N new tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from trainer.models.cache import KeyValueCache, cached_keys_and_values, replaced
from trainer.models.decoder import unchanged
from trainer.parallel.mesh import sum_over, sum_over_ranks
from trainer.parallel.parallelize import ParallelModel


class WorkerGroup:
    """`choose` is given [B, V] on one rank and says [B] what comes next."""

    def __init__(self, model: ParallelModel, cache: KeyValueCache, choose: Callable[[Tensor], Tensor]) -> None:
        self._model, self._cache, self._choose = model, cache, choose
        self._mesh = model.weights.mesh
        self._is_first = self._mesh.coordinate("replicate", "shard", "context", "tensor") == 0
        self._has_begun = False

    def begin(self, tokens_BN: Tensor, lengths: list[int]) -> Tensor:
        """Return the token that follows the first `lengths[b]` tokens of each row, [B], the same on every rank."""
        self._cache.begin(lengths, tokens_BN.device)
        return self._next(tokens_BN)

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each row and return the tokens that follow, [B]; a collective."""
        self._cache.step()
        return self._next(tokens_B[:, None])

    def _next(self, tokens_BN: Tensor) -> Tensor:
        chosen_B = torch.zeros(tokens_BN.shape[0], dtype=torch.int64, device=tokens_BN.device)
        logits_B1V = self._logits(tokens_BN)
        if logits_B1V is not None:
            logits_BV = self._whole(logits_B1V[:, 0])
            if self._is_first:
                chosen_B.copy_(self._choose(logits_BV))
        return sum_over_ranks(chosen_B, self._mesh)  # what one rank chose, and zeros

    def _logits(self, tokens_BN: Tensor) -> Tensor | None:
        """Of the words that this rank has, where it has any."""
        if self._model.pipeline is not None:
            return self._model.pipeline.logits(tokens_BN, self._cache.places_BN)
        (stage,) = self._model.stages
        return stage(tokens_BN, positions_BS=self._cache.places_BN)

    def _whole(self, logits_BV: Tensor) -> Tensor:
        """Return the logits of the full vocabulary, of which each tensor rank has a shard."""
        group = self._mesh.group("tensor")
        if group is None:
            return logits_BV
        (head,) = [stage.head for stage in self._model.stages if stage.head is not None]
        whole_BV = logits_BV.new_zeros(logits_BV.shape[0], self._model.stages[0].vocab_size)
        whole_BV[:, head.vocab_start_index : head.vocab_start_index + logits_BV.shape[1]] = logits_BV
        return sum_over(whole_BV, group)


@contextmanager
def generating(model: ParallelModel, room: int, choose: Callable[[Tensor], Tensor]) -> Iterator[WorkerGroup]:
    """Generate with the model, which does nothing else inside; a collective. `room`: tokens that a row can have.

    Compiled blocks run as they were written: every step has another shape.
    """
    group = model.weights.mesh.group("tensor")

    def leave(x: Tensor) -> Tensor:
        return sum_over(x.contiguous(), group)

    with ExitStack() as undone:
        undone.enter_context(torch.compiler.set_stance("force_eager"))
        undone.enter_context(model.weights.inference())
        cache = undone.enter_context(cached_keys_and_values(model.stages, room))
        for stage in model.stages:
            undone.enter_context(replaced(stage, "sequence_shards", 1))
            if stage.embedding is not None:
                undone.enter_context(replaced(stage.embedding, "leave", leave))
            for block in stage.blocks.values():
                undone.enter_context(replaced(block, "enter", unchanged))
                undone.enter_context(replaced(block, "leave", leave))
        yield WorkerGroup(model, cache, choose)
    model.weights.after_inference()
