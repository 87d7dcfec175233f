"""Attention to one part of the keys of ring attention, inside packed documents or in windows, and its gradients.

Documents are computed one by one, or on a GPU by torch's variable-length kernel: what lies in different documents is
not computed at all, and the scores of all tokens are never in memory together. This project's tests run the CPU
kernels; they have not run the CUDA kernels.

Shape suffixes as in `context`: q queries, k keys of this part, N documents.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from trainer.models.attention_kernels import is_fused, partial_attention, partial_attention_backward

_aten = torch.ops.aten


def document_attention(
    query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, bounds_2N: Tensor | None, *, causal: bool,
    window: int | None = None, cap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return `partial_attention` within documents: (result [B, H, q, E], log-sum-exp [B, H, q] in fp32).

    `bounds_2N`: int32, [2, N + 1], where the queries and the keys of each document begin in the flattened rows, and
    where those of the last one end; None: each row is one document. A query without keys has the result 0 and the
    log-sum-exp -inf. `causal`: a document's queries are its last tokens here; each sees the keys up to its own, and
    with a `window` only the last `window` of them.
    """
    bounds_2N = _row_bounds(query_BHqE, key_BKkE, bounds_2N, window, cap)
    if bounds_2N is None:
        return partial_attention(query_BHqE, key_BKkE, value_BKkE, None, causal=causal, window=window, cap=cap)
    if _is_varlen(query_BHqE, cap):
        query_bounds_N, key_bounds_N = bounds_2N
        lengths = query_BHqE.shape[2], key_BKkE.shape[2]
        mixed, log_sum_HT, *_ = _aten._flash_attention_forward(
            _flat(query_BHqE), _flat(key_BKkE), _flat(value_BKkE),
            query_bounds_N, key_bounds_N, *lengths, 0.0, causal and window is None, False, **_limits(window),
        )  # fmt: skip
        # The kernel returns +inf where there are no keys.
        log_sum_HT = log_sum_HT.masked_fill(log_sum_HT == float("inf"), float("-inf"))
        log_sum_HBq = log_sum_HT.unflatten(1, (query_BHqE.shape[0], query_BHqE.shape[2]))
        return _unflat(mixed, query_BHqE), log_sum_HBq.transpose(0, 1)
    mixed_BHqE = query_BHqE.new_zeros((*query_BHqE.shape[:-1], value_BKkE.shape[-1]))
    log_sum_BHq = torch.full(query_BHqE.shape[:-1], float("-inf"), device=query_BHqE.device)
    for of_queries, of_keys in _documents(bounds_2N, query_BHqE.shape[2], key_BKkE.shape[2]):
        mixed_BHqE[of_queries], log_sum_BHq[of_queries] = partial_attention(
            query_BHqE[of_queries], key_BKkE[of_keys], value_BKkE[of_keys], None, causal=causal, window=window, cap=cap
        )
    return mixed_BHqE, log_sum_BHq


def document_attention_backward(
    grad_BHqE: Tensor, query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, mixed_BHqE: Tensor,
    log_sum_BHq: Tensor, bounds_2N: Tensor | None, *, causal: bool, window: int | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what this part of the keys adds to the gradients of query, key and value; `mixed_BHqE` and `log_sum_BHq`
    are those over all keys."""
    bounds_2N = _row_bounds(query_BHqE, key_BKkE, bounds_2N, window, cap)
    if bounds_2N is None:
        return partial_attention_backward(
            grad_BHqE, query_BHqE, key_BKkE, value_BKkE, mixed_BHqE, log_sum_BHq, None, causal=causal, window=window,
            cap=cap,
        )  # fmt: skip
    if _is_varlen(query_BHqE, cap):
        query_bounds_N, key_bounds_N = bounds_2N
        no_dropout = torch.zeros(2, dtype=torch.uint64, device=query_BHqE.device)  # its random state
        query_grad, key_grad, value_grad = _aten._flash_attention_backward(
            _flat(grad_BHqE), _flat(query_BHqE), _flat(key_BKkE), _flat(value_BKkE), _flat(mixed_BHqE),
            log_sum_BHq.transpose(0, 1).flatten(1), query_bounds_N, key_bounds_N, query_BHqE.shape[2],
            key_BKkE.shape[2], 0.0, causal and window is None, no_dropout, no_dropout, **_limits(window),
        )  # fmt: skip
        return _unflat(query_grad, query_BHqE), _unflat(key_grad, key_BKkE), _unflat(value_grad, value_BKkE)
    gradients = torch.zeros_like(query_BHqE), torch.zeros_like(key_BKkE), torch.zeros_like(value_BKkE)
    for of_queries, of_keys in _documents(bounds_2N, query_BHqE.shape[2], key_BKkE.shape[2]):
        found = partial_attention_backward(
            grad_BHqE[of_queries], query_BHqE[of_queries], key_BKkE[of_keys], value_BKkE[of_keys],
            mixed_BHqE[of_queries], log_sum_BHq[of_queries], None, causal=causal, window=window, cap=cap,
        )  # fmt: skip
        for whole, place, part in zip(gradients, (of_queries, of_keys, of_keys), found, strict=True):
            whole[place] = part
    return gradients


def _is_varlen(query: Tensor, cap: float | None) -> bool:
    return query.device.type == "cuda" and is_fused(query, None, cap)


def _row_bounds(
    query: Tensor, key: Tensor, bounds_2N: Tensor | None, window: int | None, cap: float | None
) -> Tensor | None:
    """Return `bounds_2N`; where the variable-length kernel, which takes windows, can be used: those of the rows."""
    if bounds_2N is not None or window is None or not _is_varlen(query, cap):
        return bounds_2N
    rows = torch.arange(query.shape[0] + 1, dtype=torch.int32, device=query.device)
    return torch.stack([rows * query.shape[2], rows * key.shape[2]])


def _limits(window: int | None) -> dict[str, int]:
    """Return the variable-length kernel's limits of the tokens that a token attends to, before and after itself."""
    return {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}


Place = tuple[slice, slice, slice]
"""Rows, heads and tokens in [B, H, S, E]."""


def _documents(bounds_2N: Tensor, num_queries: int, num_keys: int) -> Iterator[tuple[Place, Place]]:
    """Yield where the queries and the keys of each document are that has both. Waits for the device."""
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
