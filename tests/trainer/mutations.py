"""Planted faults in the parallel code, each the kind that trains on without a word and gives other numbers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from tests.trainer.equality import Case, Outcome, take_step
from trainer.data import loader
from trainer.models import loss
from trainer.parallel import collectives, context, expert, layout, weights, window_attention
from trainer.parallel.mesh import Mesh


@dataclass(frozen=True)
class Mutation:
    """`plant` changes the code; on the mesh of `case` the numbers must then differ."""

    case: Case
    plant: Callable[[pytest.MonkeyPatch], None]


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _no_vocabulary_sums(patch: pytest.MonkeyPatch) -> None:
    whole = loss._chunk
    patch.setattr(loss, "_chunk", lambda logits, words, counted, z, _, cap: whole(logits, words, counted, z, None, cap))


def _gradients_stay_on_the_ring(patch: pytest.MonkeyPatch) -> None:
    """The keys travel on to the end of the ring, their gradients stop one rank short of home."""
    right = context._RingAttention.backward

    def backward(ctx: Any, grad: Any) -> Any:
        passed = context.Ring.send_receive
        seen: list[int] = []

        def every_other(ring: Any, tensor: Any) -> Any:
            seen.append(1)
            return (tensor, []) if len(seen) == 2 * ring.size - 1 else passed(ring, tensor)

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(context.Ring, "send_receive", every_other)
            return right(ctx, grad)

    patch.setattr(context._RingAttention, "backward", staticmethod(backward))


def _no_log_sum_exp(patch: pytest.MonkeyPatch) -> None:
    """Partial attention results are added up without their weights."""

    def added(mixed: Any, log_sum: Any, part: Any, part_log_sum: Any) -> None:
        mixed += part
        log_sum.copy_(torch.logaddexp(log_sum, part_log_sum))

    patch.setattr(context, "merge_partial", added)


def _late_keys_are_early(patch: pytest.MonkeyPatch) -> None:
    right = context.ring_step
    patch.setattr(context, "ring_step", lambda rank, owner, length: right(rank, min(rank, owner), length))


def _windows_end_with_the_chunk(patch: pytest.MonkeyPatch) -> None:
    """The first tokens of a chunk do not see those before it."""
    right = window_attention.WindowExchange.__init__

    def without_reach(exchange: Any, group: Any, rank: int, length: int, window: int) -> None:
        right(exchange, group, rank, length, window)
        exchange.chunks = [
            (queries, slice(keys.stop - queries.stop + queries.start, keys.stop)) for queries, keys in exchange.chunks
        ]

    patch.setattr(window_attention.WindowExchange, "__init__", without_reach)


def _window_gradients_stay(patch: pytest.MonkeyPatch) -> None:
    """Gradients do not return from other ranks, where windows reached the tokens."""
    right = window_attention.WindowExchange.return_gradients

    def without_others(exchange: Any, grads: Any) -> Any:
        own = torch.zeros_like(grads)
        for each in exchange._own:
            own[exchange._places[each]] = grads[exchange._places[each]]
        return right(exchange, own)

    patch.setattr(window_attention.WindowExchange, "return_gradients", without_others)


def _experts_summed_as_if_whole(patch: pytest.MonkeyPatch) -> None:
    """Ranks with different experts add up their gradients."""
    patch.setattr(weights, "is_expert", lambda name: False)


def _rows_come_back_in_another_order(patch: pytest.MonkeyPatch) -> None:
    right = expert.all_to_all_rows
    patch.setattr(expert, "all_to_all_rows", lambda rows, *rest: right(rows, *rest).flip(0))


def _exchange_drops_gradients(patch: pytest.MonkeyPatch) -> None:
    right = collectives._ExchangeRows.backward
    patch.setattr(
        collectives._ExchangeRows, "backward",
        staticmethod(lambda ctx, grad: (torch.zeros_like(right(ctx, grad)[0]), None, None, None)),
    )  # fmt: skip


def _averaged(patch: pytest.MonkeyPatch) -> None:
    """FSDP divides by the number of ranks, which is its default."""
    patch.setattr(FSDPModule, "set_gradient_divide_factor", _nothing)


def _fillers_count(patch: pytest.MonkeyPatch) -> None:
    """The sequences that fill a pipeline's micro-batches up are trained on."""
    patch.setattr(loader, "uncounted", lambda batch: batch)


def _positions_restart(patch: pytest.MonkeyPatch) -> None:
    """Each context rank believes its part to be the start of the sequence."""
    right = context.ContextParallel.shard_batch

    def forgets(cut: Any, batch: Any) -> Any:
        part = right(cut, batch)
        return replace(part, positions_BS=torch.arange(part.tokens_BS.shape[1]).expand_as(part.tokens_BS))

    patch.setattr(context.ContextParallel, "shard_batch", forgets)


def _norm_counts_replicas(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layout.ParamLayout, "replicas", property(lambda param_layout: 1))


def _replicas_never_meet(patch: pytest.MonkeyPatch) -> None:
    """HSDP without its outer sum: the replicas are taken for runs of their own."""
    right = Mesh.device_mesh
    patch.setattr(Mesh, "device_mesh", lambda mesh, *axes: right(mesh, axes[-1]))


def _method(owner: type, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(owner, name, _nothing)


def _case(model: str, world: int, packed: bool = False, **parallelism: Any) -> Case:
    return Case(model, world, parallelism, packed)


MUTATIONS: dict[str, Mutation] = {
    "norms are not summed over tensor ranks": Mutation(
        _case("dense", 2, tensor=2), _method(weights.Weights, "_sum_over_tensor_ranks")
    ),
    "routers are not summed over tensor ranks": Mutation(
        _case("moe", 2, tensor=2), _method(weights.Weights, "_sum_over_tensor_ranks")
    ),
    "a tied embedding is not summed": Mutation(
        _case("tied", 2, pipeline=2, micro_batch_sequences=4), _method(weights.Weights, "_sum_tied")
    ),
    "buckets are not reduced": Mutation(_case("dense", 2, zero=0), _method(weights.Bucket, "start_all_reduce")),
    "experts are summed as if they were whole": Mutation(
        _case("moe", 2, zero=0, expert=2), _experts_summed_as_if_whole
    ),
    "rows come back from experts in another order": Mutation(
        _case("moe", 2, zero=3, expert=2), _rows_come_back_in_another_order
    ),
    "no gradient comes back from the experts": Mutation(_case("moe", 2, zero=0, expert=2), _exchange_drops_gradients),
    "a softmax over a part of the words": Mutation(_case("dense", 2, tensor=2), _no_vocabulary_sums),
    "gradients are averaged": Mutation(_case("dense", 2, zero=3), _averaged),
    "replicas of a sharded model never meet": Mutation(_case("dense", 4, zero=1, replicate=2), _replicas_never_meet),
    "partial attention is added without weights": Mutation(_case("dense", 2, context=2, zero=0), _no_log_sum_exp),
    "gradients of keys are not brought home": Mutation(
        _case("dense", 2, context=2, zero=0), _gradients_stay_on_the_ring
    ),
    "late keys are taken for early ones": Mutation(_case("dense", 2, context=2, zero=0), _late_keys_are_early),
    "windows end with the chunk of a rank": Mutation(
        _case("mistral", 2, context=2, zero=0), _windows_end_with_the_chunk
    ),
    "gradients of keys in a window are not returned": Mutation(
        _case("mistral", 2, context=2, zero=0), _window_gradients_stay
    ),
    "positions restart at 0 on every context rank": Mutation(_case("dense", 2, context=2, zero=0), _positions_restart),
    "fillers of a micro-batch count": Mutation(_case("dense", 2, pipeline=2, micro_batch_sequences=6), _fillers_count),
    "the norm counts what several ranks hold": Mutation(_case("dense", 2, zero=0), _norm_counts_replicas),
}


def take_mutated_step(mesh: Mesh, name: str) -> Outcome:
    """On a rank."""
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[name].plant(patch)
        return take_step(mesh, MUTATIONS[name].case)
