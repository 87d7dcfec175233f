"""Frozen matrices in 4 bits (NF4; Dettmers et al. 2023, "QLoRA"): each number is one of 16 values times the largest
magnitude of its block.

A block is 64 numbers that follow each other in a row-major matrix. Two numbers share a byte, the first in its higher
half. A product dequantizes the matrix in its forward pass and again in its backward pass, and nothing of that is stored
in between.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.contract.optimisation import NF4_BLOCK

NF4_VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The values of NF4 (Dettmers et al. 2023, appendix E): quantiles of a normal distribution, scaled to [-1, 1]."""
_BLOCKS_AT_A_TIME = 2**16
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny  # divides a block of zeros


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return (packed, scales) of a tensor: bytes of two numbers each, and the largest magnitude of each block, in fp32.

    Each number becomes the nearest value, the lower one of two that are equally near. The last block is filled with
    zeros.
    """
    flat = weight.detach().flatten()
    fill = -flat.numel() % NF4_BLOCK
    blocks_XB = (functional.pad(flat, (0, fill)) if fill else flat).view(-1, NF4_BLOCK)
    values = torch.tensor(NF4_VALUES, device=weight.device)
    boundaries = (values[:-1] + values[1:]) / 2
    packed, scales = [], []
    for some_XB in blocks_XB.split(_BLOCKS_AT_A_TIME):
        some_XB = some_XB.float()
        scale_X1 = some_XB.abs().amax(dim=1, keepdim=True)
        codes_XB = torch.bucketize(some_XB / scale_X1.clamp(min=_SMALLEST_SCALE), boundaries, out_int32=True)
        first, second = codes_XB.to(torch.uint8).view(-1, 2).unbind(dim=1)
        packed.append(first << 4 | second)
        scales.append(scale_X1.flatten())
    return torch.cat(packed), torch.cat(scales)


def dequantize(packed: Tensor, scales: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Return the tensor of this shape that `quantize` has packed; each product is fp32, rounded once to `dtype`."""
    numbers = 1
    for size in shape:
        numbers *= size
    pairs = _pairs(packed.device).index_select(0, packed.to(torch.int32))
    return pairs.view(-1, NF4_BLOCK).mul_(scales[:, None]).flatten()[:numbers].view(shape).to(dtype)


@lru_cache(maxsize=16)
def _pairs(device: torch.device) -> Tensor:
    """Return the two values of each byte, [256, 2]."""
    values = torch.tensor(NF4_VALUES)
    return torch.cartesian_prod(values, values).to(device)


# These are operators so that a compiler cannot look into them: it would find the same matrix in the forward and in the
# backward pass, and store it.
@torch.library.custom_op("athanor::nf4_linear", mutates_args=())
def nf4_linear(x: Tensor, packed: Tensor, scales: Tensor, shape: list[int]) -> Tensor:
    """Return x W^T for the quantized matrix W of the shape [out, in]."""
    return functional.linear(x, dequantize(packed, scales, shape, x.dtype))


@torch.library.custom_op("athanor::nf4_linear_backward", mutates_args=())
def nf4_linear_backward(grad: Tensor, packed: Tensor, scales: Tensor, shape: list[int]) -> Tensor:
    """Return the gradient of the input of `nf4_linear`, grad W."""
    return grad @ dequantize(packed, scales, shape, grad.dtype)


@nf4_linear.register_fake
def _(x: Tensor, packed: Tensor, scales: Tensor, shape: list[int]) -> Tensor:
    return x.new_empty(*x.shape[:-1], shape[0])


@nf4_linear_backward.register_fake
def _(grad: Tensor, packed: Tensor, scales: Tensor, shape: list[int]) -> Tensor:
    return grad.new_empty(*grad.shape[:-1], shape[1])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, packed, scales, ctx.shape = inputs
    ctx.save_for_backward(packed, scales)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return nf4_linear_backward(grad, *ctx.saved_tensors, ctx.shape), None, None, None


nf4_linear.register_autograd(_backward, setup_context=_setup_context)
NF4_LINEAR = torch.ops.athanor.nf4_linear.default
"""The operator of `nf4_linear`, as dispatch modes see it."""


class NF4Weight(nn.Module):
    """A frozen matrix, [out, in], in 4 bits: the buffers `packed`, 32 bytes of each block, and `scales`, one of each.

    It takes the place of a parameter `weight`, under the same name. As it has no parameters, data ranks do not shard
    it.
    """

    packed: Tensor
    scales: Tensor

    def __init__(self, weight: Tensor) -> None:
        """Allocate the matrix with the shape and on the device of `weight`; its values are undefined."""
        super().__init__()
        self.shape = list(weight.shape)
        blocks = -(-weight.numel() // NF4_BLOCK)
        packed = torch.empty(blocks * NF4_BLOCK // 2, dtype=torch.uint8, device=weight.device)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", torch.empty(blocks, dtype=torch.float32, device=weight.device))

    def quantize_(self, weight: Tensor) -> None:
        """Set the values, from a tensor on any device."""
        packed, scales = quantize(weight.to(self.packed.device))
        self.packed.copy_(packed)
        self.scales.copy_(scales)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the matrix."""
        return dequantize(self.packed, self.scales, self.shape, dtype)


def frozen_linear(x: Tensor, weight: Tensor | NF4Weight, bias: Tensor | None) -> Tensor:
    """Return x W^T and the bias, if there is one, for a matrix in any form. A matrix in 4 bits gets no gradient."""
    if not isinstance(weight, NF4Weight):
        return functional.linear(x, weight, bias)
    product = nf4_linear(x, weight.packed, weight.scales, weight.shape)
    return product if bias is None else product + bias


class QuantizedLinear(nn.Module):
    """A linear layer with a matrix in 4 bits."""

    def __init__(self, weight: NF4Weight, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = weight
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, [..., out]."""
        return frozen_linear(x, self.weight, self.bias)
