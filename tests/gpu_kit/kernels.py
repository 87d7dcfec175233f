"""Attention's kernels on the device against the CPU in fp32, and what the device's products reach."""

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.gpu_kit.jobs import Device
from tests.trainer.activations import BLOCKS, block_of, predicted_bytes, stored_bytes, training_of
from trainer.contract.parallelism import MeshSizes
from trainer.models.attention import attend, document_mask
from trainer.models.attention_kernels import merge_partial
from trainer.parallel.document_attention import document_attention, document_attention_backward
from trainer.reporting.compute_time import MIN_STEPS_BETWEEN_SAMPLES, ComputeSampler

Figures = dict[str, Any]
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of a result or a gradient, relative to its largest element."""
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH,
}  # fmt: skip


def normal(*shape: int, seed: int) -> Tensor:
    """Return normal numbers in fp32 on the CPU, the same everywhere."""
    return torch.empty(shape).normal_(generator=torch.Generator().manual_seed(seed))


def heads(batch: int, length: int, size: int, num_heads: int, num_kv_heads: int) -> list[Tensor]:
    """Return (query, key, value, gradient of the result), [B, heads, S, E] each."""
    counts = (num_heads, num_kv_heads, num_kv_heads, num_heads)
    return [normal(batch, count, length, size, seed=seed) for seed, count in enumerate(counts)]


def with_gradients(call: Callable[..., Tensor], given: list[Tensor]) -> list[Tensor]:
    """Return the result of `call` on the first tensors and the gradients of these, the last being the result's."""
    *leaves, gradient = [each.detach().clone() for each in given]
    result = call(*(leaf.requires_grad_() for leaf in leaves))
    return [result.detach(), *torch.autograd.grad(result, leaves, gradient)]


def largest_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference of result or gradients, relative to each one's largest element."""
    return max(
        float((mine.float().cpu() - theirs).abs().max() / theirs.abs().max())
        for mine, theirs in zip(found, expected, strict=True)
    )


def check_attention(device: Device) -> Figures:
    """Compare each way in which the trainer attends, and each backend of torch, with the CPU's plain products.

    Return the largest difference of each; for a backend that refuses the inputs, why. Raises AssertionError.
    """
    torch.set_float32_matmul_precision("highest")
    found: Figures = {}
    documents_BS = (torch.arange(192) // torch.tensor([[50], [77]])).to(torch.int32)
    ways: dict[str, tuple[Tensor | None, int | None]] = {
        "causal": (None, None), "documents": (documents_BS, None), "window": (None, 40),
        "window in documents": (documents_BS, 40),
    }  # fmt: skip
    for dtype in (torch.float32, torch.bfloat16):
        for size, num_kv_heads in ((64, 8), (64, 2), (128, 2), (20, 4)):
            given = heads(2, 192, size, 8, num_kv_heads)
            moved = [each.to(device, dtype) for each in given]
            for way, (documents, window) in ways.items():
                with sdpa_kernel(SDPBackend.MATH):
                    expected = attended(given, documents, window)
                mine = attended(moved, None if documents is None else documents.to(device), window)
                name = f"{way}, {str(dtype).removeprefix('torch.')}, heads of {size}, {8 // num_kv_heads} a group"
                found[name] = compare(name, mine, expected, dtype)
    for dtype in (torch.float32, torch.bfloat16):
        given = heads(2, 192, 64, 8, 2)
        for name, backend in BACKENDS.items():
            label = f"backend {name}, {str(dtype).removeprefix('torch.')}"
            with sdpa_kernel(SDPBackend.MATH):
                expected = with_gradients(causal, given)
            try:
                with sdpa_kernel(backend):
                    mine = with_gradients(causal, [each.to(device, dtype) for each in given])
            except RuntimeError as error:
                found[label] = f"refused: {str(error).splitlines()[0][:120]}"
                continue
            found[label] = compare(label, mine, expected, dtype)
    return found


def attended(given: list[Tensor], documents: Tensor | None, window: int | None) -> list[Tensor]:
    """Return the result and the gradients of the trainer's attention."""
    mask = document_mask(documents, given[0])
    return with_gradients(lambda query, key, value: attend(query, key, value, mask, window), given)


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal grouped-query attention by whichever backend torch takes."""
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)


def compare(name: str, found: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> float:
    """Return the largest difference. Raises AssertionError above the tolerance."""
    worst = largest_difference(found, expected)
    assert worst <= TOLERANCES[dtype], f"{name}: {worst:.1e} apart where {TOLERANCES[dtype]:.0e} is allowed"
    return worst


def attend_in_two_parts(given: list[Tensor], documents: Tensor | None) -> list[Tensor]:
    """Return the result and the gradients of query, key and value by the kernels of ring attention.

    The queries are those after the first half of the keys: the second half is causal for them, the first is complete.
    `documents`: [B, k], the number of each token's document, ascending in the flattened rows; None: each row is one.
    """
    query, key, value, grad = given
    half, length = key.shape[2] - query.shape[2], key.shape[2]
    parts = [(slice(half, length), True), (slice(0, half), False)]
    bounds = [None if documents is None else bounds_of(documents[:, half:], documents[:, keys]) for keys, _ in parts]
    (mixed, log_sum), rest = (
        document_attention(query, key[:, :, keys], value[:, :, keys], each, causal=is_causal)
        for (keys, is_causal), each in zip(parts, bounds, strict=True)
    )
    mixed = mixed.float()
    merge_partial(mixed, log_sum, *rest)
    mixed = mixed.to(query.dtype)
    query_grad, key_grad, value_grad = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    for (keys, is_causal), each in zip(parts, bounds, strict=True):
        found = document_attention_backward(
            grad, query, key[:, :, keys], value[:, :, keys], mixed, log_sum, each, causal=is_causal
        )
        query_grad += found[0]
        key_grad[:, :, keys] += found[1]
        value_grad[:, :, keys] += found[2]
    return [mixed, query_grad, key_grad, value_grad]


def attend_in_window(given: list[Tensor], documents: Tensor | None, window: int) -> list[Tensor]:
    """Return the same with a window, of queries that are the last of the keys, as of a chunk in ring attention."""
    query, key, value, grad = given
    bounds = None if documents is None else bounds_of(documents[:, -query.shape[2] :], documents)
    mixed, log_sum = document_attention(query, key, value, bounds, causal=True, window=window)
    found = document_attention_backward(
        grad, query, key, value, mixed, log_sum, bounds, causal=True, window=window
    )  # fmt: skip
    return [mixed, *found]


def bounds_of(*documents: Tensor) -> Tensor:
    """Return where each document begins in each of the flattened rows, and where the last one ends, [2, N + 1]."""
    numbers = torch.arange(int(max(each.max() for each in documents)) + 2, device=documents[0].device)
    return torch.stack([torch.searchsorted(each.flatten(), numbers) for each in documents]).int()


def check_ring(device: Device) -> Figures:
    """Compare attention by the kernels of ring attention, in two parts of the keys or in a window, with the CPU's in
    one."""
    found: Figures = {}
    half, length, width = 96, 192, 70
    ways = {"causal": (False, None), "documents": (True, None), "window": (False, width),
            "window in documents": (True, width)}  # fmt: skip
    for way, (packed, window) in ways.items():
        query, key, value, grad = heads(2, length, 64, 8, 2)
        given = [query[:, :, half:].contiguous(), key, value, grad[:, :, half:].contiguous()]
        seen = torch.ones(2, 1, half, length, dtype=torch.bool).tril(half)
        documents = None
        if packed:
            begins = torch.zeros(2, length, dtype=torch.int64)
            begins[0, [40, length - 40]] = 1
            begins[1, [0, 100, 130]] = 1
            documents = begins.flatten().cumsum(0).view(2, length)
            seen = seen & (documents[:, None, half:, None] == documents[:, None, None, :])
        if window is not None:
            seen = seen.triu(half - window + 1)
        masked = partial(functional.scaled_dot_product_attention, attn_mask=seen, enable_gqa=True)
        expected = with_gradients(masked, given)
        for dtype in (torch.float32, torch.bfloat16):
            moved = [each.to(device, dtype) for each in given]
            numbers = None if documents is None else documents.to(device)
            name = f"{way}, {str(dtype).removeprefix('torch.')}"
            mine = attend_in_two_parts(moved, numbers) if window is None else attend_in_window(moved, numbers, window)
            found[name] = compare(name, mine, expected, dtype)
    return found


def check_compute_time(device: Device) -> Figures:
    """Measure products with a pause between them as a pass of a sharded model is: the pause must not count."""
    pause, size = 0.3, 4096 if device == "cuda" else 512
    sampler = ComputeSampler(torch.device(device), MeshSizes(shard=2, zero=3), first_step=-MIN_STEPS_BETWEEN_SAMPLES)
    left, right = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    begin = time.perf_counter()
    with sampler.measure(0, is_profiled=False):
        for _ in range(2):
            for _ in range(10):
                torch.mm(left, right)
            if device == "cuda":
                torch.cuda.synchronize()
            time.sleep(pause / 2)  # stands for a wait for other ranks
        seconds = time.perf_counter() - begin
    assert 0 < sampler.seconds < seconds - pause / 2, f"{sampler.seconds:.3f} s of {seconds:.3f} s with the pause"
    return {"pass": seconds, "computing": sampler.seconds}


def seconds_of(call: Callable[[], object], device: Device, rounds: int = 10) -> float:
    """Return the median seconds of a call, once it has run three times."""
    taken = []
    for number in range(rounds + 3):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        if number >= 3:
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def measure_products(device: Device) -> Figures:
    """Return the FLOP/s of matrix products of several sizes: the ceiling that a training step is compared with."""
    sizes = ((8192, 8192, 8192), (65536, 4096, 4096), (16384, 14336, 4096)) if device == "cuda" else ((512, 512, 512),)
    found: Figures = {}
    for rows, columns, inner in sizes:
        label = f"{rows} x {inner} x {columns}"
        left, right = (torch.randn(shape, device=device) for shape in ((rows, inner), (columns, inner)))
        flops = 2 * rows * columns * inner
        halves = left.bfloat16(), right.bfloat16()
        found[f"bf16 {label}"] = flops / seconds_of(partial(torch.mm, halves[0], halves[1].T), device)
        if device == "cuda":
            torch.set_float32_matmul_precision("high")
            found[f"fp32 as TF32 {label}"] = flops / seconds_of(partial(torch.mm, left, right.T), device, rounds=5)
        if device == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
            eights = [each.to(torch.float8_e4m3fn) for each in (left, right)]
            one = torch.ones((), device=device)
            product = partial(
                torch._scaled_mm, eights[0], eights[1].T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )  # fmt: skip
            found[f"fp8 {label}"] = flops / seconds_of(product, device)
    best = {
        f"best {kind}": max(value for name, value in found.items() if name.startswith(f"{kind} "))
        for kind in ("bf16", "fp8") if any(name.startswith(f"{kind} ") for name in found)
    }  # fmt: skip
    assert all(math.isfinite(value) and value > 0 for value in found.values()), found
    return {**found, **best}


def measure_attention(device: Device) -> Figures:
    """Return the FLOP/s of causal attention, forward and backward, by each backend, for the heads of an 8B model."""
    batch, length, size, num_heads, num_kv_heads = (4, 4096, 128, 32, 8) if device == "cuda" else (1, 128, 64, 4, 2)
    given = [each.to(device, torch.bfloat16) for each in heads(batch, length, size, num_heads, num_kv_heads)]
    flops = 7 * batch * num_heads * length * length * size  # 2 + 5 products of half a matrix of S x S
    found: Figures = {}
    for name, backend in BACKENDS.items():
        try:
            with sdpa_kernel(backend):
                found[name] = flops / seconds_of(lambda: with_gradients(causal, given), device, rounds=5)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            found[name] = f"refused: {str(error).splitlines()[0][:120]}"
    found["as torch chooses"] = flops / seconds_of(lambda: with_gradients(causal, given), device, rounds=5)
    return found


def measure_gradient_sums(device: Device) -> Figures:
    """Return the bytes per second at which gradients in bf16 are added to sums in fp32, as after each micro-batch:
    by torch's kernel, and by a compiled one. Counted is what must move: the sum twice, the gradient once."""
    count = 2**26 if device == "cuda" else 2**16
    total, gradient = torch.zeros(count, device=device), torch.randn(count, device=device).bfloat16()
    compiled = torch.compile(Tensor.add_, dynamic=True)
    ways = {"torch": Tensor.add_, "compiled": compiled}
    return {name: 10 * count / seconds_of(partial(add, total, gradient), device) for name, add in ways.items()}


def check_activations(device: Device) -> Figures:
    """Return, of blocks of each family, what the estimate of their stored activations is beside what autograd stores.

    Raises AssertionError where the estimate of a compiled block is too low by more than a tenth.
    """
    found: Figures = {}
    for name, changes in BLOCKS.items():
        for compiles in (False, True):
            torch.compiler.reset()
            training = training_of(changes, precision="bf16", compile=compiles)
            decoder, run, shared = block_of(training.model.resolve(), torch.bfloat16, device)
            if compiles:
                for block in decoder.blocks.values():
                    block.compile()
            run().sum().backward()
            stored = stored_bytes(decoder, run, shared)
            share = predicted_bytes(training, on_gpu=device == "cuda") / stored
            found[f"{name}{', compiled' if compiles else ''}"] = share
            assert share > 0.9 or not compiles, f"{name}: the estimate is {share:.2f} of {stored} bytes"
    return found
