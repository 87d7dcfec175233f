"""Exchanges that a gradient flows back through, under one name each, whatever torch calls them.

Those that take a part of a compiled block are torch's functional collectives, which the compiler can see through.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional


def gather_along(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """All ranks' parts in order along `dimension`; backward: the sum of all ranks' gradients for this rank's part."""
    return functional.all_gather_single(x.contiguous(), dimension, group)


def scatter_sum_along(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's part of the sum over the ranks; backward: all ranks' gradients in order."""
    return functional.reduce_scatter_single(x.contiguous(), "sum", dimension, group)


def exchange_rows(rows: Tensor, send_counts: list[int], receive_counts: list[int], group: dist.ProcessGroup) -> Tensor:
    """`send_counts[r]` of [R, ...] go to rank r, in order; returns what the ranks sent here, in their order.

    Backward: every row's gradient goes back to where it came from.
    """
    return _ExchangeRows.apply(rows, send_counts, receive_counts, group)


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send_counts: list[int], receive_counts: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.counts, ctx.group = (send_counts, receive_counts), group
        return _exchanged(rows, send_counts, receive_counts, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        send_counts, receive_counts = ctx.counts
        return _exchanged(grad, receive_counts, send_counts, ctx.group), None, None, None


def _exchanged(rows: Tensor, send_counts: list[int], receive_counts: list[int], group: dist.ProcessGroup) -> Tensor:
    received = rows.new_empty(sum(receive_counts), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive_counts, send_counts, group=group)
    return received
