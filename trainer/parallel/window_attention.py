"""Attention with a window over the chunks of ring attention: instead of passing all keys around, ranks exchange those
that windows reach.

Before each of its two chunks a rank needs `window` - 1 tokens at most, whatever the length of the sequence. One
all-to-all brings their keys and values, and a second one returns their gradients.

Shape suffixes: B batch, S this rank's part of the sequence, T tokens that it attends to, H heads, K key-value heads, E
head size.
"""

from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.contract.ring import Segment, window_segments
from trainer.models.attention_kernels import add_sinks, gradient_of_sinks
from trainer.parallel.collectives import exchange_rows
from trainer.parallel.document_attention import document_attention, document_attention_backward


class WindowExchange:
    """Exchanges the tokens that are in the windows of other ranks' tokens.

    `chunks`: the places of each chunk's queries in S, and of the keys in their windows in T.
    """

    def __init__(self, group: dist.ProcessGroup, rank: int, length: int, window: int) -> None:
        size = group.size()
        self._group, self._length, self._chunk = group, length, length // (2 * size)
        reached = [window_segments(other, size, length, window) for other in range(size)]
        self._segments = reached[rank]
        sent = [[each for each in segments if each.owner == rank] for segments in reached]
        received = [[each for each in self._segments if each.owner == other] for other in range(size)]
        self._own, sent[rank], received[rank] = received[rank], [], []
        self._sent, self._received = sum(sent, []), sum(received, [])
        self._send_counts, self._receive_counts = [_tokens(each) for each in sent], [_tokens(each) for each in received]
        ends = accumulate(each.end - each.begin for each in self._segments)
        self._places = {
            each: slice(end - each.end + each.begin, end) for each, end in zip(self._segments, ends, strict=True)
        }
        self.chunks = []
        for own in self._own:
            place = self._places[own]
            reach = min(window - 1, own.begin)
            self.chunks.append((self._local(own), slice(place.start - reach, place.stop)))

    def gather(self, mine_S: Tensor) -> Tensor:
        """Return what belongs to the tokens that this rank attends to, [T, ...], from [S, ...] of its own."""
        rows = torch.cat([mine_S[:0], *(mine_S[self._local(each)] for each in self._sent)])
        received = exchange_rows(rows, self._send_counts, self._receive_counts, self._group)
        parts = {each: mine_S[self._local(each)] for each in self._own}
        parts.update(zip(self._received, _split(received, self._received), strict=True))
        return torch.cat([parts[each] for each in self._segments])

    def return_gradients(self, grads_T: Tensor) -> Tensor:
        """Return the sum of the gradients that all ranks have for this rank's tokens, [S, ...]."""
        rows = torch.cat([grads_T[:0], *(grads_T[self._places[each]] for each in self._received)])
        received = exchange_rows(rows, self._receive_counts, self._send_counts, self._group)
        mine_S = torch.cat([grads_T[self._places[each]] for each in self._own])
        for each, part in zip(self._sent, _split(received, self._sent), strict=True):
            mine_S[self._local(each)] += part
        return mine_S

    def _local(self, segment: Segment) -> slice:
        """Return where a segment of this rank is in S."""
        before = segment.begin % self._chunk + (self._chunk if segment.begin >= self._length // 2 else 0)
        return slice(before, before + segment.end - segment.begin)


def _tokens(segments: list[Segment]) -> int:
    return sum(each.end - each.begin for each in segments)


def _split(rows: Tensor, segments: list[Segment]) -> tuple[Tensor, ...]:
    parts: tuple[Tensor, ...] = rows.split([each.end - each.begin for each in segments])
    return parts


class WindowAttention(torch.autograd.Function):
    """Attention of this rank's queries, [B, H, S, E], in the precision of the queries. `bounds`: [2, 2, N + 1], for
    each chunk as `document_attention` takes them."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks_H: Tensor | None, bounds: Tensor | None,
        exchange: WindowExchange, window: int, cap: float | None,
    ) -> Tensor:  # fmt: skip
        """Attend to the keys that windows reach, chunk by chunk."""
        rows_T = exchange.gather(_rows(key, value))
        found = []
        for number, (queries, keys) in enumerate(exchange.chunks):
            found.append(
                document_attention(
                    query[:, :, queries], *_heads(rows_T[keys]), None if bounds is None else bounds[number],
                    causal=True, window=window, cap=cap,
                )
            )  # fmt: skip
        mixed, log_sum = (torch.cat(parts, dim=2) for parts in zip(*found, strict=True))
        mixed, log_sum = add_sinks(mixed, log_sum, sinks_H)
        mixed = mixed.to(query.dtype)
        ctx.save_for_backward(query, key, value, sinks_H, bounds, mixed, log_sum)
        ctx.exchange, ctx.window, ctx.cap = exchange, window, cap
        return mixed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Exchange keys and values again, which are not stored, and return their gradients to their ranks in fp32."""
        query, key, value, sinks_H, bounds, mixed, log_sum = ctx.saved_tensors
        exchange: WindowExchange = ctx.exchange
        rows_T = exchange.gather(_rows(key, value))
        grads_T = torch.zeros_like(rows_T, dtype=torch.float32)
        of_queries = []
        for number, (queries, keys) in enumerate(exchange.chunks):
            grad_q, query_q, mixed_q, log_sum_q = (each[:, :, queries] for each in (grad, query, mixed, log_sum))
            query_part, *key_parts = document_attention_backward(
                grad_q, query_q, *_heads(rows_T[keys]), mixed_q, log_sum_q, None if bounds is None else bounds[number],
                causal=True, window=ctx.window, cap=ctx.cap,
            )  # fmt: skip
            of_queries.append(query_part.to(query.dtype))
            grads_T[keys] += _rows(*key_parts)
        grad_key, grad_value = _heads(exchange.return_gradients(grads_T).to(key.dtype))
        grad_sinks = gradient_of_sinks(grad, mixed, log_sum, sinks_H)
        return torch.cat(of_queries, dim=2), grad_key, grad_value, grad_sinks, None, None, None, None


def _rows(key_BKSE: Tensor, value_BKSE: Tensor) -> Tensor:
    """Return keys and values of each token, [S, 2, B, K, E]."""
    return torch.stack([key_BKSE, value_BKSE]).permute(3, 0, 1, 2, 4).contiguous()


def _heads(rows_S: Tensor) -> tuple[Tensor, Tensor]:
    key_BKSE, value_BKSE = rows_S.permute(1, 2, 3, 0, 4).contiguous().unbind()
    return key_BKSE, value_BKSE
