"""Tensor parallelism with sequence parallelism (Shoeybi et al. 2019, Korthikanti et al. 2022), on plain local tensors.

Between the layers each of T ranks has a part of the sequence, [B, S/T, D]. `gather_input` all-gathers the sequence in
front of a column-parallel layer, `reduce_output` reduce-scatters the output of a row-parallel layer along the sequence.
In the backward pass the two change roles. Norms and routers are replicated, but each rank computes them for its part of
the sequence, so their gradients are summed over the tensor ranks once a step (`Weights.finish_gradients`).
"""

import torch.distributed as dist
from torch import Tensor

from trainer.data.sampler import split_range
from trainer.models.attention import WideNorm
from trainer.models.decoder import Decoder
from trainer.models.moe import MixtureOfExperts
from trainer.parallel.collectives import all_gather_dim, reduce_scatter_dim
from trainer.parallel.mesh import Mesh
from trainer.parallel.overlap import SEQUENCE, overlap_matmuls


def apply_tensor_parallelism(model: Decoder, mesh: Mesh, *, overlap: bool = False) -> None:
    """Put the collectives of tensor parallelism into the model, in place; `layout.shard_parameters` shards its weights.

    `overlap`: let the matrix products of dense layers overlap with the collectives. Does nothing without tensor ranks.
    """
    group, size, rank = mesh.group("tensor"), mesh.sizes.tensor, mesh.coordinate("tensor")
    if group is None:
        return

    def gather_input(x_BSD: Tensor) -> Tensor:
        return all_gather_dim(x_BSD, SEQUENCE, group)

    def reduce_output(x_BSD: Tensor) -> Tensor:
        return reduce_scatter_dim(x_BSD, SEQUENCE, group)

    def gather_squares(squares_BS1: Tensor) -> Tensor:
        return all_gather_dim(squares_BS1, 2, group)

    def all_reduce(tensor: Tensor, operation: "dist.ReduceOp.RedOpType") -> None:
        dist.all_reduce(tensor, operation, group=group)

    model.gather_head_input, model.sequence_shards = gather_input, size
    vocab_start_index, _ = split_range(model.vocab_size, size, rank)
    if model.embedding is not None:
        model.embedding.vocab_start_index, model.embedding.reduce_output = vocab_start_index, reduce_output
    if model.head is not None:
        model.head.vocab_start_index, model.head.all_reduce = vocab_start_index, all_reduce
    for block in model.blocks.values():
        if not (overlap and overlap_matmuls(block, mesh)):
            block.gather_input, block.reduce_output = gather_input, reduce_output
        for norm in (each for each in block.attention.modules() if isinstance(each, WideNorm)):
            norm.gather = gather_squares
        if isinstance(block.mlp, MixtureOfExperts):
            block.mlp.experts.down_bias_start, _ = split_range(model.shape.hidden_size, size, rank)
        block.attention.num_heads //= size
        block.attention.num_kv_heads //= size
