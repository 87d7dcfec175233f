"""Parts of attention put together are the whole of it, whichever kernel computes them."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trainer.parallel.attention_kernels import merge_partial, partial_attention, partial_attention_backward

BATCH, HEADS, KV_HEADS, LENGTH, SIZE = 2, 4, 2, 24, 8


def some(*shape: int, seed: int) -> Tensor:
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))


def put_together(query: Tensor, key: Tensor, value: Tensor, grad: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The result and the gradients of query, key and value for queries that come after the first half of the keys."""
    half = LENGTH // 2
    parts = [(slice(half, LENGTH), True), (slice(0, half), False)]
    masks = [None if mask is None else mask[:, :, :, keys] for keys, _ in parts]
    (mixed, log_sum), rest = (
        partial_attention(query, key[:, :, keys], value[:, :, keys], each, causal=causal)
        for (keys, causal), each in zip(parts, masks, strict=True)
    )
    merge_partial(mixed, log_sum, *rest)
    query_part, of_key, of_value = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for (keys, causal), each in zip(parts, masks, strict=True):
        found = partial_attention_backward(
            grad, query, key[:, :, keys], value[:, :, keys], mixed, log_sum, each, causal=causal
        )  # fmt: skip
        query_part += found[0]
        of_key[:, :, keys] += found[1]
        of_value[:, :, keys] += found[2]
    return [mixed, query_part, of_key, of_value]


@pytest.mark.parametrize("way", ["kernel", "products", "documents"])
def test_two_parts_are_the_whole(way: str) -> None:
    half = LENGTH // 2
    query = some(BATCH, HEADS, half, SIZE, seed=1).requires_grad_()
    key, value = (some(BATCH, KV_HEADS, LENGTH, SIZE, seed=seed).requires_grad_() for seed in (2, 3))
    grad = some(BATCH, HEADS, half, SIZE, seed=4)
    mask = None if way == "kernel" else torch.ones(BATCH, 1, half, LENGTH, dtype=torch.bool)
    seen = torch.ones(BATCH, 1, half, LENGTH, dtype=torch.bool).tril(half)
    if way == "documents":  # the last queries' document begins among them, so that they see nothing of the first part
        assert mask is not None
        mask[:, :, -3:, : LENGTH - 4] = False
        mask[1, :, 0, : half - 1] = False
        seen &= mask
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
    gradients = torch.autograd.grad(expected, (query, key, value), grad)
    found = put_together(query.detach(), key.detach(), value.detach(), grad, mask)
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_accelerators_kernels_compute_what_the_cpu_does() -> None:
    arguments = [
        some(BATCH, HEADS, 12, SIZE, seed=1), some(BATCH, KV_HEADS, LENGTH, SIZE, seed=2),
        some(BATCH, KV_HEADS, LENGTH, SIZE, seed=3), some(BATCH, HEADS, 12, SIZE, seed=4),
    ]  # fmt: skip
    expected = put_together(*arguments, mask=None)
    found = put_together(*(each.to("cuda", torch.bfloat16) for each in arguments), mask=None)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.float().cpu(), theirs, rtol=0.05, atol=0.05)
