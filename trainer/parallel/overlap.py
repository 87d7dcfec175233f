"""Matrix products of tensor parallelism that overlap with their collectives (Wang et al. 2023, "Overlap communication
with dependent computation via decomposition").

In front of a column-parallel layer, each part of the gathered sequence is multiplied as it arrives; behind a
row-parallel layer, each part of the product is sent when it is computed. In the backward pass the two change roles.
GPUs of a node with peer-to-peer memory access use torch's fused operations on symmetric memory; elsewhere collective
and product follow one another, with the same numbers. The fused operations have not been run on a GPU by this project's
tests, which run torch's CPU implementations of them.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.decoder import Block
from trainer.models.feed_forward import FeedForward
from trainer.parallel.collectives import all_gather_dim, reduce_scatter_dim
from trainer.parallel.mesh import Mesh

SEQUENCE = 1  # the dimension of [B, S, D]


def has_fused_matmuls(mesh: Mesh) -> bool:
    """Return whether all tensor ranks are on GPUs of one node with peer-to-peer memory access."""
    if mesh.device.type != "cuda":
        return False
    first_of_node = mesh.rank - mesh.local_rank
    devices = [peer - first_of_node for peer in mesh.peers("tensor")]
    if min(devices) < 0 or max(devices) >= torch.cuda.device_count():
        return False
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in permutations(devices, 2))


def overlap_matmuls(block: Block, mesh: Mesh) -> bool:
    """Fuse a dense block's matrix products with its collectives, in place. Return False for a mixture of experts, or
    without tensor ranks; the block is then unchanged."""
    group = mesh.group("tensor")
    if group is None or not isinstance(block.mlp, FeedForward):
        return False
    fused = has_fused_matmuls(mesh)

    def project_in(x_BSD: Tensor, linears: Sequence[nn.Module]) -> Sequence[Tensor]:
        products: Sequence[Tensor] = _GatherAndMultiply.apply(
            x_BSD, group, fused, *(linear.weight for linear in linears)
        )
        biases = [linear.bias for linear in linears]
        return [each if bias is None else each + bias for each, bias in zip(products, biases, strict=True)]

    def project_out(x_BSD: Tensor, linear: nn.Module) -> Tensor:
        return _MultiplyAndScatter.apply(x_BSD, linear.weight, group, fused)

    for part in (block.attention, block.mlp):
        part.project_in, part.project_out = project_in, project_out
    return True


def all_gather_matmul(
    x_BSD: Tensor, weights: Sequence[Tensor], group: Any, *, fused: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return (x all-gathered along the sequence, its product x W^T for each W)."""
    if fused:
        whole_BSD, products = torch.ops.symm_mem.fused_all_gather_matmul(
            x_BSD.contiguous(), [weight.t() for weight in weights], SEQUENCE, group.group_name
        )
        return whole_BSD, products
    whole_BSD = all_gather_dim(x_BSD, SEQUENCE, group)
    return whole_BSD, [functional.linear(whole_BSD, weight) for weight in weights]


def matmul_reduce_scatter(x_BSD: Tensor, weight: Tensor, group: Any, *, fused: bool) -> Tensor:
    """Return x W^T, reduce-scattered along the sequence."""
    if fused:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(
            x_BSD.contiguous(), weight.t(), "sum", SEQUENCE, group.group_name
        )
    return reduce_scatter_dim(functional.linear(x_BSD, weight), SEQUENCE, group)


class _GatherAndMultiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, group: Any, fused: bool, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.fused = group, fused
        whole_BSD, products = all_gather_matmul(x_BSD, weights, group, fused=fused)
        ctx.save_for_backward(whole_BSD, *weights)
        return tuple(products)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        whole_BSD, *weights = ctx.saved_tensors
        of_all = torch.cat(grads, dim=-1)
        grad_BSD = matmul_reduce_scatter(of_all, torch.cat(weights).t(), ctx.group, fused=ctx.fused)
        return grad_BSD, None, None, *(_grad_of_weight(grad, whole_BSD) for grad in grads)


class _MultiplyAndScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, weight: Tensor, group: Any, fused: bool) -> Tensor:
        ctx.group, ctx.fused = group, fused
        ctx.save_for_backward(x_BSD, weight)
        return matmul_reduce_scatter(x_BSD, weight, group, fused=fused)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_BSD, weight = ctx.saved_tensors
        whole, (grad_BSD,) = all_gather_matmul(grad, [weight.t()], ctx.group, fused=ctx.fused)
        return grad_BSD, _grad_of_weight(whole, x_BSD), None, None


def _grad_of_weight(grad: Tensor, x: Tensor) -> Tensor:
    return grad.flatten(0, 1).t() @ x.flatten(0, 1)
