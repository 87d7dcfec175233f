"""Text generation on any mesh: all ranks compute their parts of the model, and one of them samples.

The sequence grows by one token at a time and is not sharded. So context ranks compute the same, and so do data ranks
unless the rows are divided over them; tensor ranks all-reduce their outputs where they reduce-scatter them in training.

Shape suffixes: B rows, N new tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from trainer.models.cache import KeyValueCache, override_attribute, use_kv_cache
from trainer.models.feed_forward import apply_linear, apply_linears, identity
from trainer.models.moe import MixtureOfExperts
from trainer.parallel.mesh import all_reduce_sum, all_reduce_world
from trainer.parallel.parallelize import ParallelModel


class GenerationSession:
    """Generates token by token: `prefill`, then `step`. `sample` maps logits [B, V] to token ids [B], on one rank, or
    with `divides_rows` on one rank of each data rank for its share of the rows, of which there is a multiple of the
    number of data ranks."""

    def __init__(
        self, model: ParallelModel, cache: KeyValueCache, sample: Callable[[Tensor], Tensor], *, divides_rows: bool
    ) -> None:
        self._model, self._cache, self._sample = model, cache, sample
        self._mesh = model.weights.mesh
        data = ("replicate", "shard")
        self._shares = self._mesh.size(*data) if divides_rows else 1
        self._share = self._mesh.coordinate(*data) if divides_rows else 0
        axes = ("context", "tensor") if divides_rows else (*data, "context", "tensor")
        self._is_first = self._mesh.coordinate(*axes) == 0

    def prefill(self, tokens_BN: Tensor, lengths: list[int]) -> Tensor:
        """Return the token after the first `lengths[b]` tokens of each row, [B], the same on every rank; a
        collective."""
        rows = self._rows(len(lengths))
        self._cache.prefill(lengths[rows], tokens_BN.device)
        return self._next(tokens_BN[:, : max(lengths[rows])])

    def step(self, tokens_B: Tensor) -> Tensor:
        """Append a token to each row and return the tokens that follow, [B]; a collective."""
        self._cache.step()
        return self._next(tokens_B[:, None])

    def _next(self, tokens_BN: Tensor) -> Tensor:
        chosen_B = torch.zeros(tokens_BN.shape[0], dtype=torch.int64, device=tokens_BN.device)
        rows = self._rows(len(chosen_B))
        logits_B1V = self._logits(tokens_BN[rows])
        if logits_B1V is not None:
            logits_BV = self._gather_vocabulary(logits_B1V[:, 0])
            if self._is_first:
                chosen_B[rows] = self._sample(logits_BV)
        return all_reduce_world(chosen_B, self._mesh)  # a row is zero on all ranks but one

    def _rows(self, count: int) -> slice:
        """Return which of `count` rows this rank computes."""
        each = count // self._shares
        assert each * self._shares == count, f"{count} rows cannot be divided over {self._shares} data ranks"
        return slice(self._share * each, (self._share + 1) * each)

    def _logits(self, tokens_BN: Tensor) -> Tensor | None:
        """Return the logits of this rank's vocabulary entries, [B, 1, V]; None without a head."""
        if self._model.pipeline is not None:
            return self._model.pipeline.logits(tokens_BN, self._cache.positions_BN)
        (stage,) = self._model.stages
        return stage(tokens_BN, positions_BS=self._cache.positions_BN)

    def _gather_vocabulary(self, logits_BV: Tensor) -> Tensor:
        """Return the logits of the full vocabulary, of which each tensor rank has a shard."""
        group = self._mesh.group("tensor")
        if group is None:
            return logits_BV
        (head,) = [stage.head for stage in self._model.stages if stage.head is not None]
        full_BV = logits_BV.new_zeros(logits_BV.shape[0], self._model.stages[0].vocab_size)
        full_BV[:, head.vocab_start_index : head.vocab_start_index + logits_BV.shape[1]] = logits_BV
        return all_reduce_sum(full_BV, group)


@contextmanager
def generation_session(
    model: ParallelModel, max_tokens: int, sample: Callable[[Tensor], Tensor], *, divides_rows: bool = False
) -> Iterator[GenerationSession]:
    """Prepare the model for generation within the context; a collective. `max_tokens`: tokens of a row, at most.

    Compiled blocks run without compilation, since every step has another shape.
    """
    group = model.weights.mesh.group("tensor")

    def reduce_output(x: Tensor) -> Tensor:
        return all_reduce_sum(x.contiguous(), group)

    with ExitStack() as overrides:
        overrides.enter_context(torch.compiler.set_stance("force_eager"))
        overrides.enter_context(model.weights.no_grad())
        cache = overrides.enter_context(use_kv_cache(model.stages, max_tokens))
        for stage in model.stages:
            overrides.enter_context(override_attribute(stage, "sequence_shards", 1))
            if stage.embedding is not None:
                overrides.enter_context(override_attribute(stage.embedding, "reduce_output", reduce_output))
            for block in stage.blocks.values():
                overrides.enter_context(override_attribute(block, "gather_input", identity))
                overrides.enter_context(override_attribute(block, "reduce_output", reduce_output))
                for part in (block.attention, block.mlp):
                    if not isinstance(part, MixtureOfExperts):  # products that overlap would gather the sequence
                        overrides.enter_context(override_attribute(part, "project_in", apply_linears))
                        overrides.enter_context(override_attribute(part, "project_out", apply_linear))
        yield GenerationSession(model, cache, sample, divides_rows=divides_rows)
    model.weights.free_gathered()
