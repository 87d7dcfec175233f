"""Low-rank adapters (LoRA, Hu et al. 2021): the model's weights are frozen, and two narrow matrices are trained beside
each adapted weight.

Tensor parallelism shards one of the two matrices in the same way as the weight: `lora_b` along dimension 0, or `lora_a`
along dimension 1.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.contract.optimisation import LoraSpec
from trainer.models.decoder import Decoder
from trainer.models.nf4 import NF4Weight, QuantizedLinear, frozen_linear

LORA_A, LORA_B = "lora_a", "lora_b"


class LoRALinear(nn.Module):
    """A linear layer with an adapter: x W^T + scale x A^T B^T, and its bias if it has one.

    `weight` W is [out, in], and in 4 bits once `quantize_linears` has replaced it; `lora_a` A is [rank, in], `lora_b` B
    is [out, rank]. Without `is_adapted`, the adapter is left out. With gradients, a share `dropout` of the adapter's
    inputs is set to zero, by torch's random numbers (`seed_dropout`).
    """

    weight: nn.Parameter | NF4Weight

    def __init__(self, linear: nn.Linear, rank: int, scale: float, dropout: float = 0.0) -> None:
        super().__init__()
        weight = linear.weight
        self.weight = weight
        self.lora_a = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.lora_b = nn.Parameter(torch.empty(weight.shape[0], rank))
        self.register_parameter("bias", linear.bias)  # behind the adapter, which `merge_adapters` adds to the weight
        self._scale, self._dropout = scale, dropout
        self.is_adapted = True

    @property
    def adapted_weight(self) -> Tensor:
        """Return the weight with the adapter added to it."""
        return self.weight + self._scale * (self.lora_b @ self.lora_a)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, [..., out]."""
        if not self.is_adapted:
            return frozen_linear(x, self.weight, self.bias)
        seen = functional.dropout(x, self._dropout) if self._dropout and torch.is_grad_enabled() else x
        narrow = functional.linear(functional.linear(seen, self.lora_a), self.lora_b)
        return frozen_linear(x, self.weight, self.bias) + self._scale * narrow


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Let the model compute as its base does, without its adapters."""
    layers = [module for module in model.modules() if isinstance(module, LoRALinear)]
    for layer in layers:
        layer.is_adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_adapted = True


def seed_dropout(seed: int, step: int, rank: int) -> None:
    """Seed torch's random numbers for a step, so that a resumed run drops the same inputs on the same ranks."""
    digest = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def is_adapter(name: str) -> bool:
    """Return whether a parameter's name is that of an adapter."""
    return name.endswith((LORA_A, LORA_B))


def add_adapters(model: Decoder, spec: LoraSpec) -> None:
    """Replace the linear layers that `spec.targets` names by `LoRALinear`, and freeze all other parameters.

    Call it before the parameters are sharded.
    """
    model.requires_grad_(requires_grad=False)
    chosen = model.shape.adapted_matrices(spec.targets)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith("blocks.") and name.split(".")[-1] in chosen:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, LoRALinear(module, spec.rank, spec.scale, spec.dropout))


def quantize_linears(model: Decoder) -> None:
    """Replace the matrices of the blocks' linear layers, with and without adapters, by ones in 4 bits of undefined
    values.

    Call it after tensor parallelism has sharded them, and before data parallelism, which they take no part in.
    """
    for name, module in list(model.blocks.named_modules()):
        if isinstance(module, nn.Linear):
            owner, _, attribute = name.rpartition(".")
            quantized = QuantizedLinear(NF4Weight(module.weight), module.bias)
            setattr(model.blocks.get_submodule(owner), attribute, quantized)
        elif isinstance(module, LoRALinear):
            assert isinstance(module.weight, nn.Parameter), "not quantized before"
            quantized_weight = NF4Weight(module.weight)
            del module.weight
            module.weight = quantized_weight


def merge_adapters(tensors: Iterable[tuple[str, Tensor]], scale: float) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's full tensors with the adapters added to their weights, in fp32.

    In `tensors`, each adapted weight is followed by its `lora_a` and `lora_b`.
    """
    pending: tuple[str, Tensor] | None = None
    narrow = None
    for name, tensor in tensors:
        if name.endswith(LORA_A):
            narrow = tensor
        elif name.endswith(LORA_B):
            assert pending is not None and narrow is not None
            pending = pending[0], pending[1].float() + scale * (tensor.float() @ narrow.float())
        else:
            if pending is not None:
                yield pending
            pending = name, tensor
    if pending is not None:
        yield pending
