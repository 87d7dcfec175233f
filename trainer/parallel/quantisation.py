"""Block quantisation: one byte for each number and an fp32 scale for each block, packed in one buffer of bytes."""

import torch
from torch import Tensor

BLOCK = 256
"""Numbers that share a scale. An outlier costs the others of its block precision; the scales add 1.6 % of bytes."""
MAX_VALUE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The value that the largest magnitude of a block is scaled to."""


def packed_size(count: int) -> int:
    """Return the packed bytes of `count` numbers, a multiple of BLOCK."""
    return count + count // BLOCK * 4


def quantise(numbers_RN: Tensor, dtype: torch.dtype) -> Tensor:
    """Pack fp32 [R, N], N a multiple of BLOCK, to uint8 [R, packed_size(N)].

    If a number is not finite, neither is the scale of its block, nor any number of the block after `dequantise`.
    """
    blocks_RKB = numbers_RN.view(len(numbers_RN), -1, BLOCK)
    scales_RK1 = blocks_RKB.abs().amax(dim=-1, keepdim=True) / MAX_VALUE[dtype]
    scaled_RKB = blocks_RKB / torch.where(scales_RK1 > 0, scales_RK1, 1.0)
    if dtype is torch.int8:
        scaled_RKB = scaled_RKB.round_()
    codes_RN = scaled_RKB.to(dtype).view(torch.uint8).flatten(1)
    return torch.cat([codes_RN, scales_RK1.flatten(1).view(torch.uint8)], dim=1)


def dequantise(packed_RM: Tensor, dtype: torch.dtype) -> Tensor:
    """Unpack uint8 [R, packed_size(N)] to fp32 [R, N]."""
    count = packed_RM.shape[1] * BLOCK // (BLOCK + 4)
    codes_RN, scale_bytes = packed_RM[:, :count], packed_RM[:, count:].contiguous()
    blocks_RKB = codes_RN.contiguous().view(dtype).to(torch.float32).view(len(packed_RM), -1, BLOCK)
    return (blocks_RKB * scale_bytes.view(torch.float32)[..., None]).flatten(1)
