"""Attention over a part of the keys, with the log-sum-exp of the scores, and its gradients: what a step of ring
attention computes, and attention with caps of its scores or with sinks.

Attention over all keys is the sum of the partial results, weighted by their shares of the softmax denominator, whose
logarithm is returned with each result (Dao et al. 2022). Causal and full attention use torch's fused kernels, and so do
windows, which are cut into parts that are causal or full; packed documents, caps and narrow windows, and precisions and
head sizes without a kernel, use plain matrix products over blocks of queries, so that the scores of all queries are
never in memory together. This project's tests run the CPU kernels; they
have not run the CUDA kernels.

Shape suffixes: B batch, H heads, K key-value heads, E head size, S sequence, q queries, k keys of this part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
MAX_FUSED_HEAD_SIZE = 256
BLOCK_BYTES = 8 * 2**20
"""Size of a block's fp32 scores on a CPU."""
ACCELERATOR_BLOCK_BYTES = 256 * 2**20
"""Size of a block's fp32 scores on any other device."""
MIN_WINDOW_BLOCK = 256
"""With a window, blocks have at most as many queries as it has tokens, or this many: more would see few of their
keys."""
MIN_FUSED_WINDOW = 32
"""Narrower windows are computed by products: the fused kernels would take many small parts."""


def partial_attention(
    query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, mask: Tensor | None, *, causal: bool,
    window: int | None = None, cap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (result [B, H, q, E], log-sum-exp [B, H, q] in fp32).

    `causal`: the queries are the last tokens of the keys; each sees the keys up to its own, and with a `window` only
    the last `window` of them. `mask`: true where a
    query may see a key, [B or 1, 1, q, k]; or the document of each token, [B, S], which sees only its own. `cap`:
    scores s become cap x tanh(s / cap). A query that sees no key has the result 0 and the log-sum-exp -inf.
    """
    window = _limit(query_BHqE, key_BKkE, causal=causal, window=window)
    if not is_fused(query_BHqE, mask, cap) or _is_narrow(window):
        return _unfused_attention(query_BHqE, key_BKkE, value_BKkE, mask, causal=causal, window=window, cap=cap)
    if window is not None:
        return _windowed_attention(query_BHqE, key_BKkE, value_BKkE, window)
    return _fused_attention(query_BHqE, key_BKkE, value_BKkE, causal=causal)


def _fused_attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """`causal`: as many queries as keys."""
    kernel = _aten._scaled_dot_product_flash_attention
    if query.device.type == "cpu":
        kernel = _aten._scaled_dot_product_flash_attention_for_cpu
    mixed, log_sum, *_ = kernel(query, key, value, 0.0, causal)
    return mixed, log_sum


def partial_attention_backward(
    grad_BHqE: Tensor, query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, mixed_BHqE: Tensor,
    log_sum_BHq: Tensor, mask: Tensor | None, *, causal: bool, window: int | None = None, cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what this part of the keys adds to the gradients of query, key and value; `mixed_BHqE` and `log_sum_BHq`
    are those over all keys."""
    found = (grad_BHqE, query_BHqE, key_BKkE, value_BKkE, mixed_BHqE, log_sum_BHq)
    window = _limit(query_BHqE, key_BKkE, causal=causal, window=window)
    if not is_fused(query_BHqE, mask, cap) or _is_narrow(window):
        return _unfused_attention_backward(*found, mask, causal=causal, window=window, cap=cap)
    if window is not None:
        return _windowed_attention_backward(*found, window)
    return _fused_attention_backward(*found, causal=causal)


def _fused_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, log_sum: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    found = (grad, query, key, value, mixed, log_sum.contiguous())
    if query.device.type == "cpu":
        query_grad, key_grad, value_grad = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *found, 0.0, causal
        )
        return query_grad, key_grad, value_grad
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)  # its random state
    query_grad, key_grad, value_grad = _aten._scaled_dot_product_flash_attention_backward(
        *found, None, None, query.shape[2], key.shape[2], 0.0, causal, no_dropout, no_dropout
    )
    return query_grad, key_grad, value_grad


def _limit(query: Tensor, key: Tensor, *, causal: bool, window: int | None) -> int | None:
    """Return the window, None if it limits nothing and torch's kernels, which take the first keys for those of the
    queries, give the same."""
    num_keys: int = key.shape[2]
    if not causal or (query.shape[2] == num_keys and (window is None or window >= num_keys)):
        return None
    return num_keys if window is None else min(window, num_keys)


def _is_narrow(window: int | None) -> bool:
    return window is not None and window < MIN_FUSED_WINDOW


@dataclass(frozen=True)
class _Part:
    """Queries and keys that see each other: all, or causally if as many are left out as precede. `is_reversed`: query
    i sees keys i and later ones, which is causal in the reverse order."""

    queries: slice
    keys: slice
    causal: bool = False
    is_reversed: bool = False

    def select(self, x: Tensor, where: slice) -> Tensor:
        """Return the tokens of [B, H, S, ...] in the order of the kernel, and the other way round."""
        return x[:, :, where].flip(2) if self.is_reversed else x[:, :, where]


def _window_parts(num_queries: int, num_keys: int, window: int) -> Iterator[_Part]:
    """Yield what the queries see, which are the last of the keys: for blocks of at most `window` queries, their own
    keys first, then those that all queries of the block see, and those that fall out of the window one by one."""
    before = num_keys - num_queries
    low = 0
    while low < num_queries:
        # Nothing falls out of the window of the first tokens of all.
        high = min(num_queries, low + window if low or before >= window else window - before)
        first, end = before + low, before + high
        yield _Part(slice(low, high), slice(first, end), causal=True)
        seen_by_all = slice(max(0, end - window), first)
        if seen_by_all.start < first:
            yield _Part(slice(low, high), seen_by_all)
        if end > window and high - low > 1:
            yield _Part(slice(low, high - 1), slice(first - window + 1, end - window), causal=True, is_reversed=True)
        low = high


def _windowed_attention(query: Tensor, key: Tensor, value: Tensor, window: int) -> tuple[Tensor, Tensor]:
    mixed = torch.empty(*query.shape[:-1], value.shape[-1], dtype=torch.float32, device=query.device)
    log_sum = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    for part in _window_parts(query.shape[2], key.shape[2], window):
        found = _fused_attention(
            part.select(query, part.queries), part.select(key, part.keys), part.select(value, part.keys),
            causal=part.causal,
        )  # fmt: skip
        of_part, log_sum_of_part = (part.select(each, slice(None)) for each in found)
        if part.causal and not part.is_reversed:
            mixed[:, :, part.queries], log_sum[:, :, part.queries] = of_part, log_sum_of_part
        else:
            merge_partial(mixed[:, :, part.queries], log_sum[:, :, part.queries], of_part, log_sum_of_part)
    return mixed.to(query.dtype), log_sum


def _windowed_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, log_sum: Tensor, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in fp32."""
    query_grad, key_grad, value_grad = (torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value))
    for part in _window_parts(query.shape[2], key.shape[2], window):
        grad_q, query_q, mixed_q, log_sum_q = (
            part.select(each, part.queries) for each in (grad, query, mixed, log_sum)
        )
        key_k, value_k = (part.select(each, part.keys) for each in (key, value))
        found = _fused_attention_backward(grad_q, query_q, key_k, value_k, mixed_q, log_sum_q, causal=part.causal)
        for whole, where, of_part in zip(
            (query_grad, key_grad, value_grad), (part.queries, part.keys, part.keys), found, strict=True
        ):
            whole[:, :, where] += part.select(of_part, slice(None))
    return query_grad, key_grad, value_grad


def causal_attention(
    query_BHSE: Tensor, key_BKSE: Tensor, value_BKSE: Tensor, sinks_H: Tensor | None, mask: Tensor | None,
    window: int | None, cap: float | None,
) -> Tensor:  # fmt: skip
    """Return causal attention, [B, H, S, E], with sinks as `add_sinks` takes them; `mask`, `window` and `cap` as
    `partial_attention` takes them.

    It is one operation to torch.compile, which would compile each block of queries by itself.
    """
    mixed_BHSE, _ = _causal_attention(query_BHSE, key_BKSE, value_BKSE, sinks_H, mask, window, cap)
    return mixed_BHSE


@torch.library.custom_op("athanor::causal_attention", mutates_args=())
def _causal_attention(
    query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, mask: Tensor | None, window: int | None,
    cap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    mixed, log_sum = partial_attention(query, key, value, mask, causal=True, window=window, cap=cap)
    mixed, log_sum = add_sinks(mixed, log_sum, sinks)
    return mixed.contiguous(), log_sum.contiguous()


@torch.library.custom_op("athanor::causal_attention_backward", mutates_args=())
def _causal_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, mixed: Tensor, log_sum: Tensor,
    mask: Tensor | None, window: int | None, cap: float | None,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of query, key, value and, where there are some, sinks."""
    grads = partial_attention_backward(
        grad, query, key, value, mixed, log_sum, mask, causal=True, window=window, cap=cap
    )
    of_sinks = gradient_of_sinks(grad, mixed, log_sum, sinks)
    return [each.to(grad.dtype).contiguous() for each in grads] + ([] if of_sinks is None else [of_sinks])


@_causal_attention.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return query.new_empty(query.shape), query.new_empty(query.shape[:-1], dtype=torch.float32)


@_causal_attention_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, *_: Any) -> list[Tensor]:
    found = [grad.new_empty(each.shape) for each in (query, key, value)]
    return found if sinks is None else [*found, sinks.new_empty(sinks.shape)]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, sinks, mask, ctx.window, ctx.cap = inputs
    ctx.save_for_backward(query, key, value, sinks, *output, mask)


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, sinks, mixed, log_sum, mask = ctx.saved_tensors
    grads = _causal_attention_backward(grad, query, key, value, sinks, mixed, log_sum, mask, ctx.window, ctx.cap)
    return *grads, *([None] if sinks is None else []), None, None, None


_causal_attention.register_autograd(_backward, setup_context=_save_for_backward)


def add_sinks(mixed_BHqE: Tensor, log_sum_BHq: Tensor, sinks_H: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return result and log-sum-exp with one more key for each head, with its sink as score and the value 0.
    None: they stay as they are."""
    if sinks_H is None:
        return mixed_BHqE, log_sum_BHq
    with_sinks_BHq = torch.logaddexp(log_sum_BHq, sinks_H.float()[:, None])
    share_BHq = (log_sum_BHq - with_sinks_BHq).exp()
    return (mixed_BHqE * share_BHq[..., None]).to(mixed_BHqE.dtype), with_sinks_BHq


def gradient_of_sinks(
    grad_BHqE: Tensor, mixed_BHqE: Tensor, log_sum_BHq: Tensor, sinks_H: Tensor | None
) -> Tensor | None:
    """Return the gradient of the sinks, from what `add_sinks` returned: of a key with the value 0, the softmax's
    gradient is minus its weight times the correction that `partial_attention_backward` subtracts too."""
    if sinks_H is None:
        return None
    weight_BHq = (sinks_H.float()[:, None] - log_sum_BHq).exp()
    correction_BHq = (grad_BHqE.float() * mixed_BHqE.float()).sum(-1)
    return -(weight_BHq * correction_BHq).sum((0, 2)).to(sinks_H.dtype)


def merge_partial(mixed_BHqE: Tensor, log_sum_BHq: Tensor, part_BHqE: Tensor, part_log_sum_BHq: Tensor) -> None:
    """Merge a partial result into `mixed_BHqE` and `log_sum_BHq`, in place, in fp32.

    Each query must have seen at least one key before.
    """
    share_BHq = torch.sigmoid(part_log_sum_BHq - log_sum_BHq)  # of the part in the sum of both
    mixed_BHqE.lerp_(part_BHqE.float(), share_BHq[..., None])
    log_sum_BHq.copy_(torch.logaddexp(log_sum_BHq, part_log_sum_BHq))


def is_fused(query: Tensor, mask: Tensor | None, cap: float | None) -> bool:
    """Return whether torch has a kernel for these inputs, which returns the log-sum-exp too."""
    if mask is not None or cap is not None:
        return False
    if query.device.type == "cpu":
        return True
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return (
        query.device.type == "cuda" and is_half and query.shape[-1] % 8 == 0 and query.shape[-1] <= MAX_FUSED_HEAD_SIZE
    )


def _blocks(query: Tensor, key: Tensor, *, causal: bool, window: int | None) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of queries, and the keys that they may see."""
    batch, heads, length, _ = query.shape
    num_keys, before = key.shape[2], key.shape[2] - length
    most = BLOCK_BYTES if query.device.type == "cpu" else ACCELERATOR_BLOCK_BYTES
    size = max(1, most // (4 * batch * heads * num_keys))
    if window is not None:
        size = min(size, max(window, MIN_WINDOW_BLOCK))
    for low in range(0, length, size):
        high = min(length, low + size)
        first = 0 if window is None else max(0, before + low - window + 1)
        yield slice(low, high), slice(first, before + high if causal else num_keys)


def _block_mask(
    mask: Tensor | None, rows: slice, keys: slice, before: int, device: torch.device, *, causal: bool,
    window: int | None,
) -> Tensor | None:  # fmt: skip
    """Return [B or 1, 1, 1, q, k], true where a query of the block may see a key; None: all see all. `before`: keys
    before that of the first query."""
    seen = None
    if mask is not None and mask.dim() == 2:
        seen = (mask[:, rows, None] == mask[:, None, keys])[:, None, None]
    elif mask is not None:
        seen = mask[:, :, None, rows, keys]
    if causal:
        ahead = torch.arange(keys.start, keys.stop, device=device) - torch.arange(
            before + rows.start, before + rows.stop, device=device
        ).unsqueeze(-1)
        near = ahead <= 0 if window is None else (ahead <= 0) & (ahead > -window)
        seen = near if seen is None else seen & near
    return seen


def _scores(query: Tensor, key: Tensor, cap: float | None) -> Tensor:
    """[B, K, H/K, q, k] in fp32, nothing masked."""
    batch, heads, length, size = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], length, size)
    scores = (grouped @ key[:, :, None].transpose(-2, -1)).float() * size**-0.5
    return scores if cap is None else cap * (scores / cap).tanh()


def _unfused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, causal: bool, window: int | None,
    cap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    mixed, log_sum, before = [], [], key.shape[2] - query.shape[2]
    for rows, keys in _blocks(query, key, causal=causal, window=window):
        scores = _scores(query[:, :, rows], key[:, :, keys], cap)
        seen = _block_mask(mask, rows, keys, before, query.device, causal=causal, window=window)
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        of_block = scores.logsumexp(-1)
        weights = (scores - of_block.nan_to_num(neginf=0.0)[..., None]).exp()
        mixed.append((weights.to(value.dtype) @ value[:, :, None, keys]).flatten(1, 2))
        log_sum.append(of_block.flatten(1, 2))
    return torch.cat(mixed, dim=2), torch.cat(log_sum, dim=2)


def _unfused_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, log_sum: Tensor, mask: Tensor | None, *,
    causal: bool, window: int | None, cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients in fp32, of products in the precision of the inputs. The softmax's gradient is weights * (d
    weights - correction), where the correction is the sum over keys of weights * d weights, which equals sum(d result *
    result) (Dao et al. 2022, appendix B)."""
    size, groups = query.shape[-1], (key.shape[1], query.shape[1] // key.shape[1])
    grad_query, before = [], key.shape[2] - query.shape[2]
    grad_key, grad_value = (torch.zeros_like(each, dtype=torch.float32) for each in (key, value))
    for rows, keys in _blocks(query, key, causal=causal, window=window):
        grad_q, query_q, mixed_q, log_sum_q = (
            each[:, :, rows].unflatten(1, groups) for each in (grad, query, mixed, log_sum)
        )
        correction = (grad_q.float() * mixed_q.float()).sum(-1, keepdim=True)
        scores = _scores(query[:, :, rows], key[:, :, keys], cap)
        weights = (scores - log_sum_q[..., None]).exp()
        seen = _block_mask(mask, rows, keys, before, query.device, causal=causal, window=window)
        if seen is not None:
            weights = weights.masked_fill(~seen, 0.0)
        grad_value[:, :, keys] += (weights.to(grad.dtype).transpose(-2, -1) @ grad_q).float().sum(2)
        grad_scores = (grad_q @ value[:, :, None, keys].transpose(-2, -1)).float() - correction
        grad_scores = weights * grad_scores * size**-0.5
        if cap is not None:
            grad_scores = grad_scores * (1.0 - (scores / cap).square())
        grad_scores = grad_scores.to(query.dtype)
        grad_key[:, :, keys] += (grad_scores.transpose(-2, -1) @ query_q).float().sum(2)
        grad_query.append((grad_scores @ key[:, :, None, keys]).float().flatten(1, 2))
    return torch.cat(grad_query, dim=2), grad_key, grad_value
