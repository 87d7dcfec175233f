"""The data axis: FSDP2 over blocks and root, gradients summed (the loss is already divided by global tokens)."""

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainer.contract.training import TrainingSpec
from trainer.models.decoder import Decoder
from trainer.parallel.mesh import Mesh

SMALL_MODEL_BYTES = 64 * 2**20
"""Up to this size of fp32 parameters the model is one group: a collective per block would cost more in waiting for
the other ranks than gathering block by block saves in memory."""


def shard_over_data(model: Decoder, training: TrainingSpec, mesh: Mesh) -> None:
    """Wrap in place. One process in fp32 stays a plain module; bf16 always uses FSDP's working copies."""
    if mesh.world_size == 1 and training.precision == "fp32":
        return
    device_mesh = init_device_mesh(mesh.device.type, (mesh.world_size,), mesh_dim_names=("data",))
    precision = MixedPrecisionPolicy()
    if training.precision == "bf16":
        precision = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    reshard = training.parallelism.reshard_after_forward
    num_bytes = sum(parameter.numel() * 4 for parameter in model.parameters())
    for block in model.blocks if num_bytes > SMALL_MODEL_BYTES else ():
        fully_shard(block, mesh=device_mesh, mp_policy=precision, reshard_after_forward=reshard)
    fully_shard(model, mesh=device_mesh, mp_policy=precision, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def set_gradient_sync(model: nn.Module, *, is_last: bool) -> None:
    """Between micro-batches gradients stay on the rank; they are reduced once, with the last."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
        model.set_is_last_backward(is_last)


def reshard(model: nn.Module) -> None:
    """After a forward without backward: whole copies would otherwise stay, and stand in for the parameters."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's shard, sharing memory; the tensor itself where it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor on every rank: a collective, so every rank calls it in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def row_range(tensor: Tensor, mesh: Mesh) -> tuple[int, int]:
    """Rows [start, stop) of dimension 0 that this rank holds of a parameter (FSDP2 splits by `torch.chunk`)."""
    if not isinstance(tensor, DTensor):
        return 0, tensor.shape[0] if tensor.ndim else 1
    rows = tensor.shape[0]
    size = -(-rows // mesh.world_size)
    start = min(rows, mesh.rank * size)
    return start, min(rows, start + size)


def inference(model: nn.Module) -> AbstractContextManager[object]:
    """Gradient-free forward. FSDP's hooks need version counters, which inference mode does not keep."""
    return torch.no_grad() if isinstance(model, FSDPModule) else torch.inference_mode()
