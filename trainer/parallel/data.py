"""ZeRO 1 to 3 by FSDP2, applied to blocks and root; with replicas, hybrid sharding (HSDP).

Gradients are summed, not averaged: the loss is already divided by the tokens of all ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.tensor import DTensor

from trainer.contract.cost import MAX_SINGLE_GROUP_BYTES
from trainer.contract.training import TrainingSpec
from trainer.models.decoder import Decoder
from trainer.models.moe import MixtureOfExperts
from trainer.parallel.mesh import Mesh


def apply_fsdp(model: Decoder, mesh: Mesh, training: TrainingSpec, *, sums_over_replicas: bool = True) -> None:
    """Apply FSDP in place: experts are sharded over the ranks with the same experts, the rest over shard x context.

    `sums_over_replicas`: FSDP also sums gradients over replicas (HSDP); not if these sums are compressed.
    """
    policy = MixedPrecisionPolicy()
    reduced = torch.bfloat16 if training.gradient_reduction == "bf16" else torch.float32
    if training.computes_in_bf16:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced, cast_forward_inputs=False)
    elif training.gradient_reduction != "fp32":
        policy = MixedPrecisionPolicy(reduce_dtype=reduced)
    hierarchical = mesh.sizes.replicate > 1 and sums_over_replicas
    outer = [("replicate",)] if hierarchical else []
    dense = mesh.device_mesh(*outer, ("shard", "context"))
    reshards = mesh.sizes.zero == 3
    mlps = [block.mlp for block in model.blocks.values()]
    if mesh.sizes.expert > 1 and any(isinstance(mlp, MixtureOfExperts) for mlp in mlps):
        sparse = mesh.device_mesh(*outer, ("expert_shard",))
        for mlp in mlps:
            if isinstance(mlp, MixtureOfExperts):
                fully_shard(mlp.experts, mesh=sparse, mp_policy=policy, reshard_after_forward=reshards)
    num_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    # A small model is gathered with one collective: one per block would cost more time than it saves memory.
    if num_bytes > MAX_SINGLE_GROUP_BYTES:
        for block in model.blocks.values():
            fully_shard(block, mesh=dense, mp_policy=policy, reshard_after_forward=reshards)
        if model.head is not None and model.norm is not None and model.head.weight is not None:
            # Gathered together, apart from the embedding, which is needed at the other end of the step.
            fully_shard([model.norm, model.head], mesh=dense, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=dense, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def on_reduce_scatter(model: nn.Module, measure: Callable[[Tensor], None]) -> None:
    """Let `measure` see each buffer of this rank's own gradients before FSDP sums and scatters it, on FSDP's stream."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_reduce_scatter(_MeasuredReduceScatter(measure))


class _MeasuredReduceScatter(DefaultReduceScatter):
    """FSDP's own sum, of a buffer that `measure` has seen."""

    def __init__(self, measure: Callable[[Tensor], None]) -> None:
        self._measure = measure

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work:
        self._measure(input_tensor)
        return super().__call__(output_tensor, input_tensor, group, op, async_op)


def reshard(model: nn.Module) -> None:
    """Free the gathered parameters that a forward pass without a backward pass leaves in place of the shards."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's shard, sharing memory; the tensor itself where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
