"""The data axes, sharded: FSDP2 over blocks and root (ZeRO 1 to 3), in groups with sums across where there are several.

Gradients are summed, never averaged: the loss is already divided by the tokens of all ranks.
"""

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainer.contract.cost import MAX_SINGLE_GROUP_BYTES
from trainer.contract.training import TrainingSpec
from trainer.models.decoder import Decoder
from trainer.models.moe import MixtureOfExperts
from trainer.parallel.mesh import Mesh


def shard_over_data(model: Decoder, mesh: Mesh, training: TrainingSpec, *, sums_over_replicas: bool = True) -> None:
    """Wrap in place: experts over the ranks that have the same ones, everything else over shard x context."""
    policy = MixedPrecisionPolicy()
    reduced = torch.bfloat16 if training.gradient_reduction == "bf16" else torch.float32
    if training.precision != "fp32":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced, cast_forward_inputs=False)
    elif training.gradient_reduction != "fp32":
        policy = MixedPrecisionPolicy(reduce_dtype=reduced)
    hierarchical = mesh.sizes.replicate > 1 and sums_over_replicas
    outer = [("replicate",)] if hierarchical else []
    dense = mesh.device_mesh(*outer, ("shard", "context"))
    frees = mesh.sizes.zero == 3
    mlps = [block.mlp for block in model.blocks.values()]
    if mesh.sizes.expert > 1 and any(isinstance(mlp, MixtureOfExperts) for mlp in mlps):
        sparse = mesh.device_mesh(*outer, ("expert_shard",))
        for mlp in mlps:
            if isinstance(mlp, MixtureOfExperts):
                fully_shard(mlp.experts, mesh=sparse, mp_policy=policy, reshard_after_forward=frees)
    num_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    # As one group where a collective per block would cost more in waiting for the other ranks than gathering block by
    # block saves in memory.
    if num_bytes > MAX_SINGLE_GROUP_BYTES:
        for block in model.blocks.values():
            fully_shard(block, mesh=dense, mp_policy=policy, reshard_after_forward=frees)
        if model.head is not None and model.norm is not None and model.head.weight is not None:
            # Gathered together, apart from the embedding, which is needed at the other end of the step.
            fully_shard([model.norm, model.head], mesh=dense, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mesh=dense, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def reshard(model: nn.Module) -> None:
    """After a forward without backward: whole copies would otherwise stay, and stand in for the parameters."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's shard, sharing memory; the tensor itself where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
