"""Attention over a part of the keys, and its gradients: the computation of one step of ring attention.

Attention over all keys is the sum of the partial results, weighted by their shares of the softmax denominator, whose
logarithm is returned with each result (Dao et al. 2022). Torch's fused kernels compute it; precisions and head sizes
without one use plain matrix products over blocks of queries, whose scores take at most `MAX_SCORE_BYTES`. Packed
documents are computed one by one, or by the variable-length kernel on a GPU: what lies in different documents is not
computed at all. This project's tests run the CPU kernels; they have not run the CUDA kernels.

Shape suffixes as in `context`: q queries, k keys of this part, N documents.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

_aten = torch.ops.aten
MAX_FUSED_HEAD_SIZE = 256
MAX_SCORE_BYTES = 2**28


def partial_attention(
    query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, bounds_2N: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return (result [B, H, q, E], log-sum-exp [B, H, q] in fp32).

    `bounds_2N`: int32, [2, N + 1], where the queries and the keys of each document begin in the flattened rows, and
    where those of the last one end; None: each row is one document. A query without keys has the result 0 and the
    log-sum-exp -inf. `causal`: query i of a document sees its keys 0 .. i only.
    """
    if bounds_2N is None:
        return _attention(query_BHqE, key_BKkE, value_BKkE, causal=causal)
    if _is_fused(query_BHqE) and query_BHqE.device.type == "cuda":
        query_bounds_N, key_bounds_N = bounds_2N
        lengths = query_BHqE.shape[2], key_BKkE.shape[2]
        mixed, log_sum_HT, *_ = _aten._flash_attention_forward(
            _flat(query_BHqE), _flat(key_BKkE), _flat(value_BKkE),
            query_bounds_N, key_bounds_N, *lengths, 0.0, causal, False,
        )  # fmt: skip
        # The kernel returns +inf where there are no keys.
        log_sum_HT = log_sum_HT.masked_fill(log_sum_HT == float("inf"), float("-inf"))
        log_sum_HBq = log_sum_HT.unflatten(1, (query_BHqE.shape[0], query_BHqE.shape[2]))
        return _unflat(mixed, query_BHqE), log_sum_HBq.transpose(0, 1)
    mixed_BHqE = query_BHqE.new_zeros((*query_BHqE.shape[:-1], value_BKkE.shape[-1]))
    log_sum_BHq = torch.full(query_BHqE.shape[:-1], float("-inf"), device=query_BHqE.device)
    for of_queries, of_keys in _documents(bounds_2N, query_BHqE.shape[2], key_BKkE.shape[2]):
        mixed_BHqE[of_queries], log_sum_BHq[of_queries] = _attention(
            query_BHqE[of_queries], key_BKkE[of_keys], value_BKkE[of_keys], causal=causal
        )
    return mixed_BHqE, log_sum_BHq


def partial_attention_backward(
    grad_BHqE: Tensor, query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, mixed_BHqE: Tensor,
    log_sum_BHq: Tensor, bounds_2N: Tensor | None, *, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what this part of the keys adds to the gradients of query, key and value; `mixed_BHqE` and `log_sum_BHq`
    are those over all keys."""
    if bounds_2N is None:
        return _attention_backward(grad_BHqE, query_BHqE, key_BKkE, value_BKkE, mixed_BHqE, log_sum_BHq, causal=causal)
    if _is_fused(query_BHqE) and query_BHqE.device.type == "cuda":
        query_bounds_N, key_bounds_N = bounds_2N
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=query_BHqE.device)  # its random state
        query_grad, key_grad, value_grad = _aten._flash_attention_backward(
            _flat(grad_BHqE), _flat(query_BHqE), _flat(key_BKkE), _flat(value_BKkE), _flat(mixed_BHqE),
            log_sum_BHq.transpose(0, 1).flatten(1), query_bounds_N, key_bounds_N, query_BHqE.shape[2],
            key_BKkE.shape[2], 0.0, causal, no_dropout, no_dropout,
        )  # fmt: skip
        return _unflat(query_grad, query_BHqE), _unflat(key_grad, key_BKkE), _unflat(value_grad, value_BKkE)
    gradients = torch.zeros_like(query_BHqE), torch.zeros_like(key_BKkE), torch.zeros_like(value_BKkE)
    for of_queries, of_keys in _documents(bounds_2N, query_BHqE.shape[2], key_BKkE.shape[2]):
        found = _attention_backward(
            grad_BHqE[of_queries], query_BHqE[of_queries], key_BKkE[of_keys], value_BKkE[of_keys],
            mixed_BHqE[of_queries], log_sum_BHq[of_queries], causal=causal,
        )  # fmt: skip
        for whole, place, part in zip(gradients, (of_queries, of_keys, of_keys), found, strict=True):
            whole[place] = part
    return gradients


def merge_partial(mixed_BHqE: Tensor, log_sum_BHq: Tensor, part_BHqE: Tensor, part_log_sum_BHq: Tensor) -> None:
    """Merge a partial result into `mixed_BHqE` and `log_sum_BHq`, in place, in fp32.

    Each query must have seen at least one key before.
    """
    share_BHq = torch.sigmoid(part_log_sum_BHq - log_sum_BHq)  # of the part in the sum of both
    mixed_BHqE.lerp_(part_BHqE.float(), share_BHq[..., None])
    log_sum_BHq.copy_(torch.logaddexp(log_sum_BHq, part_log_sum_BHq))


def _is_fused(query: Tensor) -> bool:
    if query.device.type == "cpu":
        return True
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return (
        query.device.type == "cuda" and is_half and query.shape[-1] % 8 == 0 and query.shape[-1] <= MAX_FUSED_HEAD_SIZE
    )


def _attention(query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    if not _is_fused(query_BHqE):
        return _unfused_attention(query_BHqE, key_BKkE, value_BKkE, causal=causal)
    if query_BHqE.device.type == "cpu":
        mixed_BHqE, log_sum_BHq = _aten._scaled_dot_product_flash_attention_for_cpu(
            query_BHqE, key_BKkE, value_BKkE, 0.0, causal
        )
        return mixed_BHqE, log_sum_BHq
    mixed_BHqE, log_sum_BHq, *_ = _aten._scaled_dot_product_flash_attention(
        query_BHqE, key_BKkE, value_BKkE, 0.0, causal
    )
    return mixed_BHqE, log_sum_BHq


def _attention_backward(
    grad_BHqE: Tensor, query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, mixed_BHqE: Tensor,
    log_sum_BHq: Tensor, *, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    found = (grad_BHqE, query_BHqE, key_BKkE, value_BKkE, mixed_BHqE, log_sum_BHq.contiguous())
    if not _is_fused(query_BHqE):
        return _unfused_attention_backward(*found, causal=causal)
    if query_BHqE.device.type == "cpu":
        query_grad, key_grad, value_grad = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *found, 0.0, causal
        )
        return query_grad, key_grad, value_grad
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=query_BHqE.device)  # its random state
    query_grad, key_grad, value_grad = _aten._scaled_dot_product_flash_attention_backward(
        *found, None, None, query_BHqE.shape[2], key_BKkE.shape[2], 0.0, causal, no_dropout, no_dropout
    )
    return query_grad, key_grad, value_grad


Place = tuple[slice, slice, slice]
"""Rows, heads and tokens in [B, H, S, E]."""


def _documents(bounds_2N: Tensor, num_queries: int, num_keys: int) -> Iterator[tuple[Place, Place]]:
    """Return where the queries and the keys of each document are that has both. Waits for the device."""
    queries, keys = bounds_2N.tolist()
    for query, query_end, key, key_end in zip(queries, queries[1:], keys, keys[1:], strict=False):
        if query < query_end and key < key_end:
            yield _place(query, query_end, num_queries), _place(key, key_end, num_keys)


def _place(begin: int, end: int, length: int) -> Place:
    row, first = divmod(begin, length)
    return slice(row, row + 1), slice(None), slice(first, first + end - begin)


def _flat(x_BHSE: Tensor) -> Tensor:
    """Return [B x S, H, E]."""
    return x_BHSE.transpose(1, 2).flatten(0, 1)


def _unflat(x: Tensor, like_BHSE: Tensor) -> Tensor:
    batch, _, length, _ = like_BHSE.shape
    return x.unflatten(0, (batch, length)).transpose(1, 2)


def _query_blocks(query: Tensor, key: Tensor, *, causal: bool) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Yield blocks of queries, the keys that they see, and which query sees which of these; None: each sees all."""
    batch, heads, length, _ = query.shape
    block = max(1, MAX_SCORE_BYTES // (4 * batch * heads * key.shape[2]))
    for begin in range(0, length, block):
        end = min(begin + block, length)
        if not causal:
            yield slice(begin, end), slice(None), None
            continue
        seen = torch.ones(end - begin, end, dtype=torch.bool, device=query.device).tril(begin)
        yield slice(begin, end), slice(0, end), seen


def _scores(query: Tensor, key: Tensor, seen: Tensor | None) -> Tensor:
    """[B, K, H/K, q, k] in fp32, -inf where not seen."""
    batch, heads, length, size = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], length, size)
    scores = (grouped @ key[:, :, None].transpose(-2, -1)).float() * size**-0.5
    return scores if seen is None else scores.masked_fill(~seen, float("-inf"))


def _unfused_attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    mixed = query.new_empty((*query.shape[:-1], value.shape[-1]))
    log_sum = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    for queries, keys, seen in _query_blocks(query, key, causal=causal):
        scores = _scores(query[:, :, queries], key[:, :, keys], seen)
        block_log_sum = scores.logsumexp(-1)
        weights = (scores - block_log_sum[..., None]).exp()
        mixed[:, :, queries] = (weights.to(value.dtype) @ value[:, :, None, keys]).flatten(1, 2)
        log_sum[:, :, queries] = block_log_sum.flatten(1, 2)
    return mixed, log_sum


def _unfused_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, log_sum: Tensor, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients in fp32. The softmax's gradient is weights * (d weights - correction), where the correction
    is the sum over keys of weights * d weights, which equals sum(d result * result) (Dao et al. 2022, appendix B)."""
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    size = query.shape[-1]
    correction = (grad.float() * mixed.float()).sum(-1)
    grad_query = torch.empty_like(query, dtype=torch.float32)
    grad_key, grad_value = (torch.zeros_like(each, dtype=torch.float32) for each in (key, value))
    for queries, keys, seen in _query_blocks(query, key, causal=causal):
        block_log_sum, block_correction, block_grad, block_query = (
            each[:, :, queries].float().unflatten(1, groups) for each in (log_sum, correction, grad, query)
        )
        weights = (_scores(query[:, :, queries], key[:, :, keys], seen) - block_log_sum[..., None]).exp()
        grad_value[:, :, keys] += (weights.transpose(-2, -1) @ block_grad).sum(2)
        grad_scores = block_grad @ value[:, :, None, keys].transpose(-2, -1).float() - block_correction[..., None]
        grad_scores = weights * grad_scores * size**-0.5
        grad_key[:, :, keys] += (grad_scores.transpose(-2, -1) @ block_query).sum(2)
        grad_query[:, :, queries] = (grad_scores @ key[:, :, None, keys].float()).flatten(1, 2)
    return grad_query, grad_key, grad_value
