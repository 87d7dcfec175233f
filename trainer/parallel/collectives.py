"""Differentiable collectives. Those inside compiled blocks are torch's functional collectives, which it can trace."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional

# torch 2.13 renamed them. Those of older versions that differentiate have names of their own.
_is_renamed = hasattr(functional, "all_gather_single")
_all_gather = functional.all_gather_single if _is_renamed else functional.all_gather_tensor_autograd
_reduce_scatter = functional.reduce_scatter_single if _is_renamed else functional.reduce_scatter_tensor_autograd


def all_gather_dim(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """All-gather `x` along `dimension`, in the order of ranks. The backward pass reduce-scatters the gradients."""
    return _all_gather(x.contiguous(), dimension, group)


def reduce_scatter_dim(x: Tensor, dimension: int, group: dist.ProcessGroup) -> Tensor:
    """Reduce-scatter `x` along `dimension`, by sum. The backward pass all-gathers the gradients."""
    return _reduce_scatter(x.contiguous(), "sum", dimension, group)


def all_to_all_equal(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send an equal part of `x`, along its first dimension, to each rank. Return the received parts in rank order. The
    backward pass sends the gradients back."""
    return functional.all_to_all_single_autograd(x.contiguous(), None, None, group)


def all_to_all_rows(
    rows: Tensor, send_counts: list[int], receive_counts: list[int], group: dist.ProcessGroup
) -> Tensor:
    """Send the first `send_counts[0]` rows of [R, ...] to rank 0, and so on. Return the received rows in rank order.

    `receive_counts`: rows from each rank. The backward pass sends the gradient of each row back to the row's rank.
    """
    return _ExchangeRows.apply(rows, send_counts, receive_counts, group)


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send_counts: list[int], receive_counts: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.counts, ctx.group = (send_counts, receive_counts), group
        return exchange_rows(rows, send_counts, receive_counts, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        send_counts, receive_counts = ctx.counts
        return exchange_rows(grad, receive_counts, send_counts, ctx.group), None, None, None


def exchange_rows(rows: Tensor, send_counts: list[int], receive_counts: list[int], group: dist.ProcessGroup) -> Tensor:
    """Do what `all_to_all_rows` does, without a backward pass."""
    received = rows.new_empty(sum(receive_counts), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive_counts, send_counts, group=group)
    return received
