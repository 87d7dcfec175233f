"""Tensor parallelism with sequence parallelism (Shoeybi et al. 2019, Korthikanti et al. 2022), on plain local tensors.

Between the layers each rank holds a part of the sequence, [B, S/T, D]. `enter` gathers the sequence in front of what is
cut by columns, `leave` adds the parts up behind what is cut by rows and scatters the sum. In the backward pass the two
change roles, so what is computed between them yields a rank's part of a sum for every gradient: also for the norms and
the router, which no rank has a part of, and whose gradients are therefore summed over the tensor ranks once a step.
"""

import torch.distributed as dist
from torch import Tensor

from trainer.data.sampler import share
from trainer.models.decoder import Decoder
from trainer.parallel.collectives import gather_along, scatter_sum_along
from trainer.parallel.mesh import Mesh
from trainer.parallel.overlap import SEQUENCE, overlap_products


def apply_tensor_parallelism(model: Decoder, mesh: Mesh, *, overlap: bool = False) -> None:
    """Put the exchanges where the model leaves room for them, with `overlap` into the products next to them. Its
    parameters are cut by `layout.cut_parameters`."""
    group, size, rank = mesh.group("tensor"), mesh.sizes.tensor, mesh.coordinate("tensor")
    if group is None:
        return

    def enter(x_BSD: Tensor) -> Tensor:
        return gather_along(x_BSD, SEQUENCE, group)

    def leave(x_BSD: Tensor) -> Tensor:
        return scatter_sum_along(x_BSD, SEQUENCE, group)

    def combine(tensor: Tensor, operation: "dist.ReduceOp.RedOpType") -> None:
        dist.all_reduce(tensor, operation, group=group)

    model.enter, model.sequence_shards = enter, size
    vocab_start_index, _ = share(model.vocab_size, size, rank)
    if model.embedding is not None:
        model.embedding.vocab_start_index, model.embedding.leave = vocab_start_index, leave
    if model.head is not None:
        model.head.vocab_start_index, model.head.combine = vocab_start_index, combine
    for block in model.blocks.values():
        if not (overlap and overlap_products(block, mesh)):
            block.enter, block.leave = enter, leave
        block.attention.num_heads //= size
        block.attention.num_kv_heads //= size
