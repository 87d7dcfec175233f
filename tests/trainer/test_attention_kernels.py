"""Attention in two parts of the keys equals attention over all of them. `make gpu-kit` checks the same on a GPU."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.gpu_kit.kernels import attend_in_two_parts, attend_in_window, bounds_of, check_ring, normal
from trainer.models import attention_kernels
from trainer.models.attention import attend, document_cu_seqlens, document_mask, document_numbers
from trainer.models.loss import linear_cross_entropy
from trainer.parallel.document_attention import document_attention, document_attention_backward

BATCH, HEADS, KV_HEADS, LENGTH, SIZE = 2, 4, 2, 24, 8
CAP = 0.5


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("way", ["kernel", "products", "products in blocks"])
def test_two_parts_are_the_whole(way: str, is_packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if way != "kernel":
        monkeypatch.setattr(attention_kernels, "is_fused", lambda *_: False)
    if way == "products in blocks":
        monkeypatch.setattr(attention_kernels, "BLOCK_BYTES", 5 * 4 * BATCH * HEADS * LENGTH)
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


@pytest.mark.parametrize("window", [1, 5, 12, 13, LENGTH - 1])
@pytest.mark.parametrize("before", [0, 3, 12])
@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("way", ["kernel", "products", "products in blocks"])
def test_the_parts_of_a_window_are_the_whole(
    way: str, is_packed: bool, before: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of queries that are the last tokens of the keys, after `before` others."""
    monkeypatch.setattr(attention_kernels, "MIN_FUSED_WINDOW", 1 if way == "kernel" else LENGTH + 1)
    if way == "products in blocks":
        monkeypatch.setattr(attention_kernels, "BLOCK_BYTES", 5 * 4 * BATCH * HEADS * LENGTH)
        monkeypatch.setattr(attention_kernels, "MIN_WINDOW_BLOCK", 3)
    query = normal(BATCH, HEADS, LENGTH - before, SIZE, seed=1).requires_grad_()
    key, value = (normal(BATCH, KV_HEADS, LENGTH, SIZE, seed=seed).requires_grad_() for seed in (2, 3))
    grad = normal(*query.shape, seed=4)
    seen, documents = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).tril().triu(1 - window), None
    if is_packed:
        documents = torch.tensor([[0] * 7 + [1] * 10 + [2] * 7, [3] * 2 + [4] * 21 + [5]])
        seen = seen & (documents[:, None, :, None] == documents[:, None, None, :])
    expected = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen[:, :, before:], enable_gqa=True
    )
    gradients = torch.autograd.grad(expected, (query, key, value), grad)
    found = attend_in_window([query.detach(), key.detach(), value.detach(), grad], documents, window)
    for mine, theirs in zip(found, [expected.detach(), *gradients], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=4e-6)


def test_the_gpu_kit_compares_windows_too() -> None:
    assert {"window, float32", "window in documents, bfloat16"} <= check_ring("cpu").keys()


@pytest.mark.parametrize("window", [None, 1, 5, LENGTH])
@pytest.mark.parametrize("documents", ["none", "mask", "bounds"])
@pytest.mark.parametrize(("rows", "cap", "has_sinks"), [(1, CAP, False), (7, CAP, True), (LENGTH, None, True)])
def test_blocks_of_capped_scores_with_sinks_are_the_whole(
    rows: int, cap: float | None, has_sinks: bool, documents: str, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and gradients, against the formula written down and differentiated by torch."""
    monkeypatch.setattr(attention_kernels, "BLOCK_BYTES", 4 * BATCH * HEADS * LENGTH * rows)
    monkeypatch.setattr(attention_kernels, "MIN_WINDOW_BLOCK", rows)
    query = normal(BATCH, HEADS, LENGTH, SIZE, seed=1).requires_grad_()
    key, value = (normal(BATCH, KV_HEADS, LENGTH, SIZE, seed=seed).requires_grad_() for seed in (2, 3))
    grad = normal(BATCH, HEADS, LENGTH, SIZE, seed=4)
    seen, mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril(), None
    seen = (seen if window is None else seen.triu(1 - window))[None, None]
    if documents != "none":
        numbers = torch.tensor([[0] * 5 + [1] * 19, [0] * 20 + [1, 2, 2, 2]])
        seen = seen & document_mask(numbers, query)
        mask = document_mask(numbers, query) if documents == "mask" else document_cu_seqlens(numbers)
    each_key, each_value = (tensor.repeat_interleave(HEADS // KV_HEADS, 1) for tensor in (key, value))
    sinks = normal(HEADS, seed=5).requires_grad_() if has_sinks else None
    scores = (query @ each_key.transpose(2, 3)) * SIZE**-0.5
    scores = scores if cap is None else cap * (scores / cap).tanh()
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks[None, :, None, None].expand(BATCH, -1, LENGTH, 1)], dim=-1)
    expected = scores.softmax(-1)[..., :LENGTH] @ each_value
    found = attend(query, key, value, mask, window, cap, sinks)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    inputs = [each for each in (query, key, value, sinks) if each is not None]
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_numbers_of_documents_follow_from_their_bounds() -> None:
    numbers = torch.tensor([[3, 3, 4, 4, 4], [4, 4, 4, 7, 8]])
    found = document_numbers(document_cu_seqlens(numbers), 2, 5)
    assert found.tolist() == [[1, 1, 2, 2, 2], [3, 3, 3, 4, 5]]


def test_capped_attention_compiles_to_one_graph() -> None:
    counts = (HEADS, KV_HEADS, KV_HEADS)
    query, key, value = (normal(BATCH, heads, LENGTH, SIZE, seed=1).requires_grad_() for heads in counts)
    results = []
    sinks = normal(HEADS, seed=2).requires_grad_()
    for function in (attend, torch.compile(attend, backend="aot_eager", fullgraph=True)):
        mixed = function(query, key, value, None, 5, CAP, sinks)
        results.append([mixed, *torch.autograd.grad(mixed.sum(), (query, key, value, sinks))])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_the_loss_of_capped_logits_has_their_gradient(z_loss: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.models.loss.CHUNK_BYTES", 4 * 12 * 5)
    x, weight = (normal(*size, seed=5).requires_grad_() for size in ((16, SIZE), (12, SIZE)))
    targets = torch.arange(16) % 12
    logits = CAP * (x @ weight.T / CAP).tanh()
    expected = functional.cross_entropy(logits, targets, reduction="sum")
    expected = expected + z_loss * logits.logsumexp(-1).square().sum()
    found = linear_cross_entropy(x, weight, targets, z_loss, cap=CAP)
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(
        torch.autograd.grad(3.0 * found, (x, weight)), torch.autograd.grad(3.0 * expected, (x, weight)), strict=True
    ):
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
        monkeypatch.setattr(attention_kernels, "is_fused", lambda *_: False)
    query, key, value, grad = (normal(1, 1, 1024, SIZE, seed=seed) for seed in range(4))
    documents = (torch.arange(1024) // 16)[None]
    bounds = bounds_of(documents, documents)
    with LargestTensor() as largest:
        found = document_attention(query, key, value, bounds, causal=True)
        document_attention_backward(grad, query, key, value, *found, bounds, causal=True)
    assert largest.elements == query.numel()


@pytest.mark.parametrize("way", ["kernel", "products"])
@pytest.mark.parametrize("length", [1024, 4096])
def test_memory_of_a_window_is_bounded_by_the_block(way: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One head, a window of 64 tokens: the scores of a block of queries at most, however long the sequence is."""
    monkeypatch.setattr(attention_kernels, "MIN_FUSED_WINDOW", 1 if way == "kernel" else length)
    query, key, value, grad = (normal(1, 1, length, SIZE, seed=seed) for seed in range(4))
    with LargestTensor() as largest:
        found = document_attention(query, key, value, None, causal=True, window=64)
        document_attention_backward(grad, query, key, value, *found, None, causal=True, window=64)
    block = attention_kernels.MIN_WINDOW_BLOCK
    assert largest.elements <= max(query.numel(), 0 if way == "kernel" else block * (block + 64))
