"""Weights in MXFP4 (OCP Microscaling Formats specification, 1.0): groups of 32 4-bit numbers with one scale."""

import torch
from torch import Tensor

GROUP = 32
"""Numbers with one scale."""
_MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_VALUES = torch.tensor([*_MAGNITUDES, *(-each for each in _MAGNITUDES)], dtype=torch.bfloat16, device="cpu")
"""The numbers by their 4 bits: a sign, two bits of exponent and one of mantissa."""
_SCALE_BIAS = 127


def dequantize(blocks_NRGC: Tensor, scales_NRG: Tensor) -> Tensor:
    """Return the numbers, [N, R, 32 G] in bf16: N experts, R rows of G groups.

    `blocks_NRGC`: two numbers in each byte, the first in its lower half, [N, R, G, 16]. `scales_NRG`: the exponent of
    each group's scale, a power of two, plus 127.
    """
    experts, rows, groups = scales_NRG.shape
    numbers = torch.empty(experts, rows, groups * GROUP, dtype=torch.bfloat16)
    for result_RE, blocks_RGC, scales_RG in zip(numbers, blocks_NRGC, scales_NRG, strict=True):  # for less memory
        halves = torch.stack([blocks_RGC & 15, blocks_RGC >> 4], dim=-1).flatten(-2)
        exponents = scales_RG.int()[..., None] - _SCALE_BIAS
        torch.ldexp(_VALUES[halves.int()], exponents, out=result_RE.view(rows, groups, GROUP))
    return numbers
