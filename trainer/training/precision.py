"""FP8 matrix products. Parameters, moments and accumulated gradients stay in fp32."""

import torch
from torch import nn

from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.errors import TrainerError
from trainer.models.decoder import Decoder
from trainer.models.feed_forward import FeedForward
from trainer.parallel.mesh import Mesh

FP8_MULTIPLE = 16  # of both dimensions of a matrix, as the kernels want it


def apply_precision(stage: Decoder, training: TrainingSpec, mesh: Mesh) -> None:
    """With precision fp8, convert the linear layers of attention and dense feed-forward layers, in place.

    Tensors are scaled by their largest magnitude (torchao's dynamic tensorwise scaling); embedding, head, norms,
    routers and experts stay in bf16. Devices without fp8 products emulate them. Raises TrainerError (BAD_SPEC) without
    torchao.
    """
    if training.precision != "fp8":
        return
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TrainerError(
            EndClass.BAD_SPEC,
            "training.precision fp8 needs torchao, which is not installed; install athanor[fp8] or use bf16",
        ) from error
    config = Float8LinearConfig(emulate=not has_fp8_products(mesh))
    for block in stage.blocks.values():
        parts = [block.attention, *([block.mlp] if isinstance(block.mlp, FeedForward) else [])]
        for part in parts:
            convert_to_float8_training(part, config=config, module_filter_fn=_fits)


def has_fp8_products(mesh: Mesh) -> bool:
    """Return whether the device multiplies fp8 matrices: CUDA with compute capability 8.9 or higher (Ada, Hopper)."""
    return bool(mesh.device.type == "cuda" and torch.cuda.get_device_capability(mesh.device) >= (8, 9))


def _fits(module: nn.Module, _: str) -> bool:
    return isinstance(module, nn.Linear) and all(size % FP8_MULTIPLE == 0 for size in module.weight.shape)
