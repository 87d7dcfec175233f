"""Products of matrices that go on while the tensor ranks exchange what they multiply (Wang et al. 2023, "Overlap
communication with dependent computation via decomposition").

In front of what is cut by columns the sequence is gathered, and each part is multiplied as it comes; behind what is cut
by rows each part of the product is sent as it is done. Going back the two change roles, as the exchanges do in
`parallel.tensor`. Where the devices of a node reach each other's memory, torch's fused products of symmetric memory do
that; elsewhere exchange and product follow one another, with the same numbers. The fused ones have never been run on a
GPU: what is tested is their place in the model, on torch's own stand-ins for them.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.decoder import Block
from trainer.models.feed_forward import FeedForward
from trainer.parallel.collectives import gather_along, scatter_sum_along
from trainer.parallel.mesh import Mesh

SEQUENCE = 1  # the dimension of [B, S, D]


def has_fused_products(mesh: Mesh) -> bool:
    """Whether all tensor ranks are on GPUs of one node that reach each other's memory."""
    if mesh.device.type != "cuda":
        return False
    first_of_node = mesh.rank - mesh.local_rank
    devices = [peer - first_of_node for peer in mesh.peers("tensor")]
    if min(devices) < 0 or max(devices) >= torch.cuda.device_count():
        return False
    return all(torch.cuda.can_device_access_peer(one, other) for one, other in permutations(devices, 2))


def overlap_products(block: Block, mesh: Mesh) -> bool:
    """Let a dense block's products take over its exchanges; whether it is dense. Experts do not wait for a whole
    sequence, so their layers stay as they are."""
    group = mesh.group("tensor")
    if group is None or not isinstance(block.mlp, FeedForward):
        return False
    fused = has_fused_products(mesh)

    def project_in(x_BSD: Tensor, linears: Sequence[nn.Module]) -> Sequence[Tensor]:
        products: Sequence[Tensor] = _GatherAndMultiply.apply(
            x_BSD, group, fused, *(linear.weight for linear in linears)
        )
        return products

    def project_out(x_BSD: Tensor, linear: nn.Module) -> Tensor:
        return _MultiplyAndScatter.apply(x_BSD, linear.weight, group, fused)

    for part in (block.attention, block.mlp):
        part.project_in, part.project_out = project_in, project_out
    return True


def gathered_products(
    x_BSD: Tensor, weights: Sequence[Tensor], group: Any, *, fused: bool
) -> tuple[Tensor, Sequence[Tensor]]:
    """Return (the full sequence x, x W^T for each W)."""
    if fused:
        whole_BSD, products = torch.ops.symm_mem.fused_all_gather_matmul(
            x_BSD.contiguous(), [weight.t() for weight in weights], SEQUENCE, group.group_name
        )
        return whole_BSD, products
    whole_BSD = gather_along(x_BSD, SEQUENCE, group)
    return whole_BSD, [functional.linear(whole_BSD, weight) for weight in weights]


def scattered_product(x_BSD: Tensor, weight: Tensor, group: Any, *, fused: bool) -> Tensor:
    """Return this rank's part of the sequence of the sum of all ranks' x W^T."""
    if fused:
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(
            x_BSD.contiguous(), weight.t(), "sum", SEQUENCE, group.group_name
        )
    return scatter_sum_along(functional.linear(x_BSD, weight), SEQUENCE, group)


class _GatherAndMultiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, group: Any, fused: bool, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.fused = group, fused
        whole_BSD, products = gathered_products(x_BSD, weights, group, fused=fused)
        ctx.save_for_backward(whole_BSD, *weights)
        return tuple(products)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        whole_BSD, *weights = ctx.saved_tensors
        of_all = torch.cat(grads, dim=-1)
        grad_BSD = scattered_product(of_all, torch.cat(weights).t(), ctx.group, fused=ctx.fused)
        return grad_BSD, None, None, *(_grad_of_weight(grad, whole_BSD) for grad in grads)


class _MultiplyAndScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, weight: Tensor, group: Any, fused: bool) -> Tensor:
        ctx.group, ctx.fused = group, fused
        ctx.save_for_backward(x_BSD, weight)
        return scattered_product(x_BSD, weight, group, fused=fused)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_BSD, weight = ctx.saved_tensors
        whole, (grad_BSD,) = gathered_products(grad, [weight.t()], ctx.group, fused=ctx.fused)
        return grad_BSD, _grad_of_weight(whole, x_BSD), None, None


def _grad_of_weight(grad: Tensor, x: Tensor) -> Tensor:
    return grad.flatten(0, 1).t() @ x.flatten(0, 1)
