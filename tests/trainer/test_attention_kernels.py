"""Attention in two parts of the keys equals attention over all of them. `make gpu-kit` checks the same on a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.gpu_kit.kernels import attend_in_two_parts, bounds_of, normal
from trainer.parallel import attention_kernels
from trainer.parallel.attention_kernels import partial_attention, partial_attention_backward

BATCH, HEADS, KV_HEADS, LENGTH, SIZE = 2, 4, 2, 24, 8


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("way", ["kernel", "products", "products in blocks"])
def test_two_parts_are_the_whole(way: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "kernel":
        monkeypatch.setattr(attention_kernels, "_is_fused", lambda _: False)
    if way == "products in blocks":
        monkeypatch.setattr(attention_kernels, "MAX_SCORE_BYTES", 5 * 4 * BATCH * HEADS * LENGTH)
    half = LENGTH // 2
    query = normal(BATCH, HEADS, half, SIZE, seed=1).requires_grad_()
    key, value = (normal(BATCH, KV_HEADS, LENGTH, SIZE, seed=seed).requires_grad_() for seed in (2, 3))
    grad = normal(BATCH, HEADS, half, SIZE, seed=4)
    seen, documents = torch.ones(BATCH, 1, half, LENGTH, dtype=torch.bool).tril(half), None
    if is_packed:  # some queries' documents begin among them, so that these see nothing of the first part
        begins = torch.zeros(BATCH, LENGTH, dtype=torch.int64)
        begins[0, [5, LENGTH - 4]] = 1
        begins[1, [0, half - 1, half, half + 1]] = 1
        documents = begins.flatten().cumsum(0).view(BATCH, LENGTH)
        seen = seen & (documents[:, None, half:, None] == documents[:, None, None, :])
    expected = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen, enable_gqa=True)
    gradients = torch.autograd.grad(expected, (query, key, value), grad)
    found = attend_in_two_parts([query.detach(), key.detach(), value.detach(), grad], documents)
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
    rows = torch.empty(BATCH * 12, HEADS, SIZE, device="meta", dtype=torch.bfloat16)
    keys = torch.empty(BATCH * LENGTH, KV_HEADS, SIZE, device="meta", dtype=torch.bfloat16)
    bounds = torch.empty(9, device="meta", dtype=torch.int32)
    mixed, log_sum, *_ = aten._flash_attention_forward(rows, keys, keys, bounds, bounds, 12, LENGTH, 0.0, False, False)
    assert (mixed.shape, log_sum.shape, log_sum.dtype) == (rows.shape, (HEADS, BATCH * 12), torch.float32)


class LargestTensor(TorchDispatchMode):
    """Records how many elements the largest tensor has that any operation makes."""

    elements = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        made = operation(*given, **(named or {}))
        for each in tree_leaves(made):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return made


@pytest.mark.parametrize("way", ["kernel", "products"])
def test_scores_of_packed_documents_are_never_held_together(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One head, 1,024 tokens in 64 documents: nothing is larger than the inputs."""
    if way == "products":
        monkeypatch.setattr(attention_kernels, "_is_fused", lambda _: False)
    query, key, value, grad = (normal(1, 1, 1024, SIZE, seed=seed) for seed in range(4))
    documents = (torch.arange(1024) // 16)[None]
    bounds = bounds_of(documents, documents)
    with LargestTensor() as largest:
        found = partial_attention(query, key, value, bounds, causal=True)
        partial_attention_backward(grad, query, key, value, *found, bounds, causal=True)
    assert largest.elements == query.numel()
