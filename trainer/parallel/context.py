"""Context parallelism: each rank has a part of every sequence, and attention reaches across.

Ring (Liu et al. 2023): keys and values travel round the ring; each rank meets all of them and merges the partial
results by their log-sum-exp. A causal mask makes late queries dearer than early ones, so the sequence is cut into twice
as many chunks as ranks, and rank r has chunk r and chunk 2C-1-r: every rank has the same work at every turn.

Ulysses (Jacobs et al. 2023): an all-to-all swaps the cut of the sequence for a cut of the heads and back.

Shape suffixes: B batch, S this rank's part of the sequence, W the whole of it, H heads, K key-value heads, E head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract.parallelism import ParallelismSpec
from trainer.data.batch import MicroBatch
from trainer.models.attention import attend, document_mask
from trainer.models.decoder import Decoder
from trainer.parallel.attention_kernels import attend_part, merge, part_gradients
from trainer.parallel.collectives import exchange_rows
from trainer.parallel.mesh import Mesh


class ContextCut:
    """Which tokens of a sequence this rank has, and how its attention meets the rest."""

    def __init__(self, mesh: Mesh, spec: ParallelismSpec) -> None:
        self._size, self._rank = mesh.sizes.context, mesh.coordinate("context")
        self._group, self._is_ring = mesh.group("context"), spec.context_attention == "ring"
        self._peers = mesh.peers("context")

    def part_of(self, batch: MicroBatch) -> MicroBatch:
        """Return this rank's tokens, targets and positions; the document numbers stay complete, since attention needs
        them."""
        if self._group is None:
            return batch
        mine_S = self._mine(batch.tokens_BS.shape[1], batch.tokens_BS.device)
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
        model.mask_of = self._keep_documents if self._is_ring else document_mask
        for block in model.blocks.values():
            block.attention.attend = self._ring if self._is_ring else self._ulysses

    def _mine(self, length: int, device: torch.device) -> Tensor:
        """Places in the whole sequence of this rank's tokens, [S], rising."""
        if not self._is_ring:
            size = length // self._size
            return torch.arange(self._rank * size, (self._rank + 1) * size, device=device)
        return chunk_places(self._rank, self._size, length, device)

    @staticmethod
    def _keep_documents(documents_BW: Tensor | None, _: Tensor) -> Tensor | None:
        return documents_BW

    @torch.compiler.disable  # it talks to other ranks
    def _ring(self, query: Tensor, key: Tensor, value: Tensor, documents_BW: Tensor | None) -> Tensor:
        assert self._group is not None
        ring = Ring(self._group, self._peers, self._rank)
        return _RingAttention.apply(query, key, value, documents_BW, ring)

    @torch.compiler.disable
    def _ulysses(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = (self._heads_for_sequence(tensor) for tensor in (query, key, value))
        return self._sequence_for_heads(attend(query, key, value, mask))

    def _heads_for_sequence(self, x_BHSE: Tensor) -> Tensor:
        """[B, H, S, E] of my tokens to [B, H/C, W, E] of my heads."""
        assert self._group is not None
        batch, heads, length, size = x_BHSE.shape
        ranks, equal = self._size, [heads // self._size] * self._size
        received = exchange_rows(x_BHSE.transpose(0, 1), equal, equal, self._group)  # [rank x heads/C, B, S, E]
        received = received.view(ranks, heads // ranks, batch, length, size)
        return received.permute(2, 1, 0, 3, 4).reshape(batch, heads // ranks, ranks * length, size)

    def _sequence_for_heads(self, x_BHWE: Tensor) -> Tensor:
        assert self._group is not None
        batch, heads, length, size = x_BHWE.shape
        ranks, equal = self._size, [length // self._size] * self._size
        received = exchange_rows(x_BHWE.permute(2, 0, 1, 3), equal, equal, self._group)  # [rank x S, B, H/C, E]
        received = received.view(ranks, length // ranks, batch, heads, size)
        return received.permute(2, 0, 3, 1, 4).reshape(batch, ranks * heads, length // ranks, size)


def chunk_places(rank: int, size: int, length: int, device: torch.device) -> Tensor:
    """Places of chunk `rank` and chunk 2 * size - 1 - rank of a sequence cut into 2 * size chunks."""
    chunk = length // (2 * size)
    first = torch.arange(rank * chunk, (rank + 1) * chunk, device=device)
    late = 2 * size - 1 - rank
    return torch.cat([first, torch.arange(late * chunk, (late + 1) * chunk, device=device)])


@dataclass(frozen=True)
class Ring:
    """The ranks of a context group in the order of the ring."""

    group: dist.ProcessGroup
    peers: list[int]
    rank: int

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.peers)

    def pass_on(self, tensor: Tensor) -> tuple[Tensor, list[dist.Work]]:
        """Send to the next rank, receive from the one before; the received tensor is there when the works are done."""
        received = torch.empty_like(tensor)
        after, before = self.peers[(self.rank + 1) % self.size], self.peers[self.rank - 1]
        operations = [
            dist.P2POp(dist.isend, tensor, after, self.group),
            dist.P2POp(dist.irecv, received, before, self.group),
        ]
        return received, dist.batch_isend_irecv(operations)


@dataclass(frozen=True)
class Turn:
    """Which of my queries meet which of `owner`'s keys: slices of the two halves, and how they are masked."""

    queries: slice
    keys: slice
    causal: bool


def turn_of(rank: int, owner: int, length: int) -> Turn:
    """`length`: of a rank's part. Keys of an earlier rank: their early half precedes all my queries and their late
    half follows them; keys of a later rank: all of them lie between my early and my late half."""
    half, whole = length // 2, slice(0, length)
    if owner == rank:
        return Turn(whole, whole, causal=True)
    if owner < rank:
        return Turn(whole, slice(0, half), causal=False)
    return Turn(slice(half, length), whole, causal=False)


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, documents_BW: Tensor | None, ring: Ring) -> Tensor:
        travelling = torch.stack([key, value])
        for number in range(ring.size):
            owner = (ring.rank - number) % ring.size
            is_last = number == ring.size - 1
            following, works = (travelling, []) if is_last else ring.pass_on(travelling)
            turn = turn_of(ring.rank, owner, query.shape[2])
            keys, values = travelling[:, :, :, turn.keys].unbind()
            part, part_log_sum = attend_part(
                query[:, :, turn.queries], keys, values, _mask(documents_BW, ring, owner, turn), causal=turn.causal
            )
            if number == 0:
                mixed, log_sum = part.float(), part_log_sum
            else:
                merge(mixed[:, :, turn.queries], log_sum[:, :, turn.queries], part, part_log_sum)
            for work in works:
                work.wait()
            travelling = following
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, documents_BW, mixed, log_sum)
        ctx.ring = ring
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Keys and values travel once more, and behind them, summed up on the way, their gradients: those of an owner's
        keys arrive while this rank's part of them is computed, and need one turn more to be home."""
        query, key, value, documents_BW, mixed, log_sum = ctx.saved_tensors
        ring: Ring = ctx.ring
        travelling = torch.stack([key, value])
        grad_works: list[dist.Work] = []
        for number in range(ring.size):
            owner = (ring.rank - number) % ring.size
            is_last = number == ring.size - 1
            following, works = (travelling, []) if is_last else ring.pass_on(travelling)
            turn = turn_of(ring.rank, owner, query.shape[2])
            grad_q, query_q, mixed_q, log_sum_q = (t[:, :, turn.queries] for t in (grad, query, mixed, log_sum))
            keys, values = travelling[:, :, :, turn.keys].unbind()
            mask = _mask(documents_BW, ring, owner, turn)
            of_query, *of_keys = part_gradients(
                grad_q, query_q, keys, values, mixed_q, log_sum_q, mask, causal=turn.causal
            )
            if number == 0:
                grad_query, grads = of_query.float(), torch.stack(of_keys).float()
            else:
                grad_query[:, :, turn.queries] += of_query
                for work in grad_works:
                    work.wait()
                for whole, of_key in zip(grads, of_keys, strict=True):
                    whole[:, :, turn.keys] += of_key
            grads, grad_works = ring.pass_on(grads)
            for work in works:
                work.wait()
            travelling = following
        for work in grad_works:
            work.wait()
        grad_key, grad_value = grads.to(query.dtype).unbind()
        return grad_query.to(query.dtype), grad_key, grad_value, None, None


def _mask(documents_BW: Tensor | None, ring: Ring, owner: int, turn: Turn) -> Tensor | None:
    """[B, 1, q, k], true where a query of this turn is in a key's document; None where there are no documents."""
    if documents_BW is None:
        return None
    length, device = documents_BW.shape[1], documents_BW.device
    of_queries = documents_BW[:, chunk_places(ring.rank, ring.size, length, device)[turn.queries]]
    of_keys = documents_BW[:, chunk_places(owner, ring.size, length, device)[turn.keys]]
    return (of_queries[:, :, None] == of_keys[:, None, :])[:, None]
