"""Attention in two parts of the keys equals attention over all of them. `make gpu-kit` checks the same on a GPU."""

import pytest
import torch
from torch.nn import functional

from tests.gpu_kit.kernels import attend_in_two_parts, normal

BATCH, HEADS, KV_HEADS, LENGTH, SIZE = 2, 4, 2, 24, 8


@pytest.mark.parametrize("way", ["kernel", "products", "documents"])
def test_two_parts_are_the_whole(way: str) -> None:
    half = LENGTH // 2
    query = normal(BATCH, HEADS, half, SIZE, seed=1).requires_grad_()
    key, value = (normal(BATCH, KV_HEADS, LENGTH, SIZE, seed=seed).requires_grad_() for seed in (2, 3))
    grad = normal(BATCH, HEADS, half, SIZE, seed=4)
    mask = None if way == "kernel" else torch.ones(BATCH, 1, half, LENGTH, dtype=torch.bool)
    seen = torch.ones(BATCH, 1, half, LENGTH, dtype=torch.bool).tril(half)
    if way == "documents":  # the last queries' document begins among them, so that they see nothing of the first part
        assert mask is not None
        mask[:, :, -3:, : LENGTH - 4] = False
        mask[1, :, 0, : half - 1] = False
        seen &= mask
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
    gradients = torch.autograd.grad(expected, (query, key, value), grad)
    found = attend_in_two_parts([query.detach(), key.detach(), value.detach(), grad], mask)
    for mine, theirs in zip(found, [expected.detach(), *gradients], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_accelerators_kernels_take_what_they_are_given() -> None:
    """Their shapes alone, on the meta device: their numbers need the accelerator."""
    query = torch.empty(BATCH, HEADS, 12, SIZE, device="meta", dtype=torch.bfloat16)
    key = torch.empty(BATCH, KV_HEADS, LENGTH, SIZE, device="meta", dtype=torch.bfloat16)
    aten = torch.ops.aten
    mixed, log_sum, cumulative, _, longest, *_ = aten._scaled_dot_product_flash_attention(query, key, key, 0.0, False)
    assert (mixed.shape, log_sum.shape, log_sum.dtype) == (query.shape, query.shape[:-1], torch.float32)
    assert (cumulative, longest) == (None, 12)
