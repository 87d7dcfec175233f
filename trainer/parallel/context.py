"""Context parallelism: the sequence is sharded over C ranks, and attention spans all of them.

Ring attention (Liu et al. 2023): keys and values are passed around the ring; each rank attends to one part after
another and merges the partial results by their log-sum-exp. A causal mask makes late queries more expensive than early
ones, so the sequence is cut into 2 C chunks, and rank r has the chunks r and 2 C - 1 - r: all ranks have equal work in
each step. Layers with a window exchange only what windows reach (`window_attention`).

Ulysses (Jacobs et al. 2023): an all-to-all replaces the sharded sequence by sharded heads, a second one reverses it.

Shape suffixes: B batch, S this rank's part of the sequence, W the full sequence, H heads, K key-value heads, E head
size.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract.parallelism import ParallelismSpec
from trainer.contract.ring import chunks_of
from trainer.data.batch import MicroBatch
from trainer.models.attention import attend, document_cu_seqlens, document_mask, pad_heads
from trainer.models.attention_kernels import add_sinks, gradient_of_sinks, merge_partial
from trainer.models.decoder import Decoder
from trainer.parallel.collectives import all_to_all_equal
from trainer.parallel.document_attention import document_attention, document_attention_backward
from trainer.parallel.mesh import Mesh
from trainer.parallel.window_attention import WindowAttention, WindowExchange


class ContextParallel:
    """Shards sequences over the context ranks, and makes attention span them; does nothing with one context rank."""

    def __init__(self, mesh: Mesh, spec: ParallelismSpec) -> None:
        self._size, self._rank = mesh.sizes.context, mesh.coordinate("context")
        self._group, self._is_ring = mesh.group("context"), spec.context_attention == "ring"
        self._peers = mesh.peers("context")

    def shard_batch(self, batch: MicroBatch) -> MicroBatch:
        """Return this rank's tokens, targets and positions; the document numbers stay complete, since attention needs
        them."""
        if self._group is None:
            return batch
        mine_S = self.positions_of(self._rank, batch.tokens_BS.shape[1], batch.tokens_BS.device)
        positions_BS = batch.positions_BS
        if positions_BS is None:
            positions_BS = torch.arange(batch.tokens_BS.shape[1], device=batch.tokens_BS.device).expand_as(
                batch.tokens_BS
            )
        return MicroBatch(
            batch.tokens_BS[:, mine_S], batch.targets_BS[:, mine_S], batch.documents_BS, positions_BS[:, mine_S]
        )

    def apply(self, model: Decoder) -> None:
        """Let the model attend over the ranks of the context group."""
        if self._group is None:
            return
        model.make_mask = document_mask
        if self._is_ring:
            windows = {block.attention.window for block in model.blocks.values()} - {None}
            assert len(windows) <= 1, "all windows of a model are equal"
            model.make_mask = partial(self._ring_bounds, window=next(iter(windows), None))
        method = self._ring if self._is_ring else self._ulysses
        for block in model.blocks.values():
            block.attention.attend = partial(method, window=block.attention.window, cap=block.attention.cap)

    def positions_of(self, rank: int, length: int, device: torch.device) -> Tensor:
        """Return the positions of a context rank's tokens in the full sequence of `length`, [S], ascending."""
        if self._group is None or not self._is_ring:
            size = length // self._size
            return torch.arange(rank * size, (rank + 1) * size, device=device)
        return chunk_positions(rank, self._size, length, device)

    def _ring_bounds(self, documents_BW: Tensor | None, _: Tensor, *, window: int | None) -> Tensor | None:
        """Return where documents begin among the queries and keys of each step of the ring and then, if there is a
        window, of each chunk and what its window reaches, [C or C + 2, 2, N + 1], as `document_attention` takes it;
        None: each row is one document."""
        if documents_BW is None:
            return None
        device, length = documents_BW.device, documents_BW.shape[1]
        begins_N = document_cu_seqlens(documents_BW).long()
        places = torch.arange(documents_BW.numel(), device=device).view_as(documents_BW)
        positions = []
        for number in range(self._size):
            owner = (self._rank - number) % self._size
            step = ring_step(self._rank, owner, length // self._size)
            for rank, tokens in ((self._rank, step.queries), (owner, step.keys)):
                positions.append(chunk_positions(rank, self._size, length, device)[tokens])
        if window is not None and window < length:
            for queries in chunk_positions(self._rank, self._size, length, device).chunk(2):
                begin, end = int(queries[0]), int(queries[-1]) + 1
                positions += [queries, torch.arange(max(0, begin - window + 1), end, device=device)]
        # Positions ascend in each row, so a document's tokens are neighbours in the flattened rows.
        bounds = [torch.searchsorted(places[:, each].flatten(), begins_N) for each in positions]
        return torch.stack(bounds).unflatten(0, (-1, 2)).int()

    @torch.compiler.disable  # torch cannot trace what is sent to one rank only
    def _ring(
        self, query: Tensor, key: Tensor, value: Tensor, bounds: Tensor | None, *, window: int | None,
        cap: float | None, sinks_H: Tensor | None,
    ) -> Tensor:  # fmt: skip
        assert self._group is not None
        padded = pad_heads(value, key.shape[-1])  # keys and values travel together
        length = self._size * query.shape[2]
        if window is not None and window < length:
            exchange = WindowExchange(self._group, self._rank, length, window)
            of_chunks = None if bounds is None else bounds[self._size :]
            mixed = WindowAttention.apply(query, key, padded, sinks_H, of_chunks, exchange, window, cap)
        else:
            ring = Ring(self._group, self._peers, self._rank)
            mixed = _RingAttention.apply(query, key, padded, sinks_H, bounds, ring, cap)
        return mixed[..., : value.shape[-1]]

    def _ulysses(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, window: int | None, cap: float | None,
        sinks_H: Tensor | None,
    ) -> Tensor:  # fmt: skip
        query, key, value = (self._heads_for_sequence(tensor) for tensor in (query, key, value))
        if sinks_H is not None:
            sinks_H = sinks_H.chunk(self._size)[self._rank]
        return self._sequence_for_heads(attend(query, key, value, mask, window, cap, sinks_H))

    def _heads_for_sequence(self, x_BHSE: Tensor) -> Tensor:
        """Exchange [B, H, S, E], all heads of this rank's tokens, for [B, H/C, W, E], all tokens of its heads."""
        assert self._group is not None
        batch, heads, length, size = x_BHSE.shape
        ranks = self._size
        received = all_to_all_equal(x_BHSE.transpose(0, 1), self._group)  # [rank x heads/C, B, S, E]
        received = received.view(ranks, heads // ranks, batch, length, size)
        return received.permute(2, 1, 0, 3, 4).reshape(batch, heads // ranks, ranks * length, size)

    def _sequence_for_heads(self, x_BHWE: Tensor) -> Tensor:
        assert self._group is not None
        batch, heads, length, size = x_BHWE.shape
        ranks = self._size
        received = all_to_all_equal(x_BHWE.permute(2, 0, 1, 3), self._group)  # [rank x S, B, H/C, E]
        received = received.view(ranks, length // ranks, batch, heads, size)
        return received.permute(2, 0, 3, 1, 4).reshape(batch, ranks * heads, length // ranks, size)


def chunk_positions(rank: int, size: int, length: int, device: torch.device) -> Tensor:
    """Return the positions of the tokens of a rank's chunks, ascending."""
    chunk = length // (2 * size)
    return torch.cat([torch.arange(each * chunk, (each + 1) * chunk, device=device) for each in chunks_of(rank, size)])


@dataclass(frozen=True)
class Ring:
    """The ranks of a context group in the order of the ring."""

    group: dist.ProcessGroup
    peers: tuple[int, ...]
    rank: int

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.peers)

    def send_receive(self, tensor: Tensor) -> tuple[Tensor, list[dist.Work]]:
        """Send to the next rank and receive from the previous one. Return (received tensor, works to wait for)."""
        received = torch.empty_like(tensor)
        after, before = self.peers[(self.rank + 1) % self.size], self.peers[self.rank - 1]
        operations = [
            dist.P2POp(dist.isend, tensor, after, self.group),
            dist.P2POp(dist.irecv, received, before, self.group),
        ]
        return received, dist.batch_isend_irecv(operations)


@dataclass(frozen=True)
class RingStep:
    """The slices of this rank's queries and of another rank's keys that attend in one step, and whether causally."""

    queries: slice
    keys: slice
    causal: bool


def ring_step(rank: int, owner: int, length: int) -> RingStep:
    """Return which queries of `rank` see which keys of `owner`; `length`: tokens of a rank.

    The early half of an earlier rank's keys precedes all queries of `rank`, and the late half follows them. All keys of
    a later rank lie between the early and the late half of the queries.
    """
    half, everything = length // 2, slice(0, length)
    if owner == rank:
        return RingStep(everything, everything, causal=True)
    if owner < rank:
        return RingStep(everything, slice(0, half), causal=False)
    return RingStep(slice(half, length), everything, causal=False)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks_H: Tensor | None, all_bounds: Tensor | None,
        ring: Ring, cap: float | None,
    ) -> Tensor:  # fmt: skip
        key_value = torch.stack([key, value])
        for number in range(ring.size):
            owner = (ring.rank - number) % ring.size
            is_last = number == ring.size - 1
            next_key_value, works = (key_value, []) if is_last else ring.send_receive(key_value)
            step = ring_step(ring.rank, owner, query.shape[2])
            keys, values = key_value[:, :, :, step.keys].unbind()
            bounds = None if all_bounds is None else all_bounds[number]
            part, part_log_sum = document_attention(
                query[:, :, step.queries], keys, values, bounds, causal=step.causal, cap=cap
            )
            if number == 0:
                mixed, log_sum = part.float(), part_log_sum
            else:
                merge_partial(mixed[:, :, step.queries], log_sum[:, :, step.queries], part, part_log_sum)
            for work in works:
                work.wait()
            key_value = next_key_value
        mixed, log_sum = add_sinks(mixed, log_sum, sinks_H)
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, sinks_H, all_bounds, mixed, log_sum)
        ctx.ring, ctx.cap = ring, cap
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Pass keys and values around the ring again, followed by their gradients, to which each rank adds its part.

        The gradients need one more step than the keys to return to their rank.
        """
        query, key, value, sinks_H, all_bounds, mixed, log_sum = ctx.saved_tensors
        ring: Ring = ctx.ring
        key_value = torch.stack([key, value])
        grad_works: list[dist.Work] = []
        for number in range(ring.size):
            owner = (ring.rank - number) % ring.size
            is_last = number == ring.size - 1
            next_key_value, works = (key_value, []) if is_last else ring.send_receive(key_value)
            step = ring_step(ring.rank, owner, query.shape[2])
            grad_q, query_q, mixed_q, log_sum_q = (t[:, :, step.queries] for t in (grad, query, mixed, log_sum))
            keys, values = key_value[:, :, :, step.keys].unbind()
            bounds = None if all_bounds is None else all_bounds[number]
            query_part, *key_parts = document_attention_backward(
                grad_q, query_q, keys, values, mixed_q, log_sum_q, bounds, causal=step.causal, cap=ctx.cap
            )
            if number == 0:
                grad_query, grads = query_part.float(), torch.stack(key_parts).float()
            else:
                grad_query[:, :, step.queries] += query_part
                for work in grad_works:
                    work.wait()
                for whole, of_key in zip(grads, key_parts, strict=True):
                    whole[:, :, step.keys] += of_key
            grads, grad_works = ring.send_receive(grads)
            for work in works:
                work.wait()
            key_value = next_key_value
        for work in grad_works:
            work.wait()
        grad_key, grad_value = grads.to(query.dtype).unbind()
        grad_sinks = gradient_of_sinks(grad, mixed, log_sum, sinks_H)
        return grad_query.to(query.dtype), grad_key, grad_value, grad_sinks, None, None, None
