"""Low-rank adapters (Hu et al. 2021, LoRA): the model's own weights rest, and two narrow matrices beside each chosen
one are trained.

A tensor cut of the weight cuts one of the two alike: `lora_b` by rows or `lora_a` by columns; what the other yields is
a rank's part of a sum either way.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.contract.optimisation import LoraSpec
from trainer.models.decoder import Decoder

DOWN, UP = "lora_a", "lora_b"


class AdaptedLinear(nn.Module):
    """`weight` [out, in], `lora_a` [rank, in], `lora_b` [out, rank]: x W^T + scale x A^T B^T."""

    def __init__(self, weight: nn.Parameter, rank: int, scale: float) -> None:
        super().__init__()
        self.weight = weight
        self.lora_a = nn.Parameter(torch.empty(rank, weight.shape[1]))
        self.lora_b = nn.Parameter(torch.empty(weight.shape[0], rank))
        self._scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with the weight plus the scaled product with the adapter."""
        narrow = functional.linear(functional.linear(x, self.lora_a), self.lora_b)
        return functional.linear(x, self.weight) + self._scale * narrow


def is_adapter(name: str) -> bool:
    """Return whether a parameter's name is that of an adapter."""
    return name.endswith((DOWN, UP))


def add_adapters(model: Decoder, spec: LoraSpec) -> None:
    """In place, before the model is cut; everything else is frozen."""
    model.requires_grad_(requires_grad=False)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.startswith("blocks.") and name.split(".")[-1] in spec.targets:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, AdaptedLinear(module.weight, spec.rank, spec.scale))


def merged(tensors: Iterable[tuple[str, Tensor]], scale: float) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's full tensors with adapters merged: each weight is followed by its adapters and has them added,
    in fp32."""
    held: tuple[str, Tensor] | None = None
    narrow = None
    for name, tensor in tensors:
        if name.endswith(DOWN):
            narrow = tensor
        elif name.endswith(UP):
            assert held is not None and narrow is not None
            held = held[0], held[1].float() + scale * (tensor.float() @ narrow.float())
        else:
            if held is not None:
                yield held
            held = name, tensor
    if held is not None:
        yield held
