"""Block quantisation: one byte for each number and an fp32 scale for each block, packed in one buffer of bytes."""

import torch
from torch import Tensor

BLOCK = 256
"""Numbers that share a scale. An outlier costs the others of its block precision; the scales add 1.6 % of bytes."""
MAX_VALUE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The value that the largest magnitude of a block is scaled to."""


def packed_bytes(count: int) -> int:
    """Bytes of `count` numbers, a multiple of BLOCK."""
    return count + count // BLOCK * 4


def quantised(numbers_RN: Tensor, dtype: torch.dtype) -> Tensor:
    """[R, N] of fp32, N a multiple of BLOCK, as [R, packed_bytes(N)] of uint8.

    A block with a number that is not finite has a scale that is not, and none of it is finite afterwards.
    """
    blocks_RKB = numbers_RN.view(len(numbers_RN), -1, BLOCK)
    scales_RK1 = blocks_RKB.abs().amax(dim=-1, keepdim=True) / MAX_VALUE[dtype]
    scaled_RKB = blocks_RKB / torch.where(scales_RK1 > 0, scales_RK1, 1.0)
    if dtype is torch.int8:
        scaled_RKB = scaled_RKB.round_()
    codes_RN = scaled_RKB.to(dtype).view(torch.uint8).flatten(1)
    return torch.cat([codes_RN, scales_RK1.flatten(1).view(torch.uint8)], dim=1)


def dequantised(packed_RM: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the fp32 numbers [R, N] that `quantised` has packed."""
    count = packed_RM.shape[1] * BLOCK // (BLOCK + 4)
    codes_RN, scale_bytes = packed_RM[:, :count], packed_RM[:, count:].contiguous()
    blocks_RKB = codes_RN.contiguous().view(dtype).to(torch.float32).view(len(packed_RM), -1, BLOCK)
    return (blocks_RKB * scale_bytes.view(torch.float32)[..., None]).flatten(1)
