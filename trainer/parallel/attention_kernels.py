"""Attention over a part of the keys, and its gradients: the computation of one step of ring attention.

Attention over all keys is the sum of the partial results, weighted by their shares of the softmax denominator, whose
logarithm is returned with each result (Dao et al. 2022). Causal and full attention use torch's fused kernels; packed
documents, and precisions and head sizes without a kernel, use plain matrix products. This project's tests run the CPU
kernels; they have not run the CUDA kernels.

Shape suffixes as in `context`: q queries, k keys of this part.
"""

import torch
from torch import Tensor

_aten = torch.ops.aten
MAX_FUSED_HEAD_SIZE = 256


def partial_attention(
    query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return (result [B, H, q, E], log-sum-exp [B, H, q] in fp32).

    `causal`: query i sees keys 0 .. i only. `mask`: [B or 1, 1, q, k], true where a query may see a key. A query that
    sees no key has the result 0 and the log-sum-exp -inf.
    """
    if not _is_fused(query_BHqE, mask):
        return _unfused_attention(query_BHqE, key_BKkE, value_BKkE, _with_causal(mask, query_BHqE) if causal else mask)
    if query_BHqE.device.type == "cpu":
        mixed_BHqE, log_sum_BHq = _aten._scaled_dot_product_flash_attention_for_cpu(
            query_BHqE, key_BKkE, value_BKkE, 0.0, causal
        )
        return mixed_BHqE, log_sum_BHq
    mixed_BHqE, log_sum_BHq, *_ = _aten._scaled_dot_product_flash_attention(
        query_BHqE, key_BKkE, value_BKkE, 0.0, causal
    )
    return mixed_BHqE, log_sum_BHq


def partial_attention_backward(
    grad_BHqE: Tensor, query_BHqE: Tensor, key_BKkE: Tensor, value_BKkE: Tensor, mixed_BHqE: Tensor,
    log_sum_BHq: Tensor, mask: Tensor | None, *, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return what this part of the keys adds to the gradients of query, key and value; `mixed_BHqE` and `log_sum_BHq`
    are those over all keys."""
    if not _is_fused(query_BHqE, mask):
        mask = _with_causal(mask, query_BHqE) if causal else mask
        return _unfused_attention_backward(grad_BHqE, query_BHqE, key_BKkE, value_BKkE, mixed_BHqE, log_sum_BHq, mask)
    found = (grad_BHqE, query_BHqE, key_BKkE, value_BKkE, mixed_BHqE, log_sum_BHq.contiguous())
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


def merge_partial(mixed_BHqE: Tensor, log_sum_BHq: Tensor, part_BHqE: Tensor, part_log_sum_BHq: Tensor) -> None:
    """Merge a partial result into `mixed_BHqE` and `log_sum_BHq`, in place, in fp32.

    Each query must have seen at least one key before.
    """
    share_BHq = torch.sigmoid(part_log_sum_BHq - log_sum_BHq)  # of the part in the sum of both
    mixed_BHqE.lerp_(part_BHqE.float(), share_BHq[..., None])
    log_sum_BHq.copy_(torch.logaddexp(log_sum_BHq, part_log_sum_BHq))


def _is_fused(query: Tensor, mask: Tensor | None) -> bool:
    if mask is not None:
        return False
    if query.device.type == "cpu":
        return True
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    return (
        query.device.type == "cuda" and is_half and query.shape[-1] % 8 == 0 and query.shape[-1] <= MAX_FUSED_HEAD_SIZE
    )


def _with_causal(mask: Tensor | None, query: Tensor) -> Tensor:
    length = query.shape[2]
    causal = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()[None, None]
    return causal if mask is None else mask & causal


def _scores(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """[B, K, H/K, q, k] in fp32, -inf where masked."""
    batch, heads, length, size = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], length, size)
    scores = (grouped @ key[:, :, None].transpose(-2, -1)).float() * size**-0.5
    return scores if mask is None else scores.masked_fill(~mask[:, :, None], float("-inf"))


def _unfused_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    scores = _scores(query, key, mask)
    log_sum = scores.logsumexp(-1)
    weights = (scores - log_sum.nan_to_num(neginf=0.0)[..., None]).exp()
    mixed = weights.to(value.dtype) @ value[:, :, None]
    return mixed.reshape(query.shape), log_sum.reshape(query.shape[:-1])


def _unfused_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, log_sum: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients in fp32. The softmax's gradient is weights * (d weights - correction), where the correction
    is the sum over keys of weights * d weights, which equals sum(d result * result) (Dao et al. 2022, appendix B)."""
    batch, heads, length, size = query.shape
    shape = (batch, key.shape[1], heads // key.shape[1], length)
    correction = (grad.float() * mixed.float()).sum(-1)
    weights = (_scores(query, key, mask) - log_sum.reshape(*shape, 1)).exp()
    grad, query = grad.float().reshape(*shape, size), query.float().reshape(*shape, size)
    grad_value = (weights.transpose(-2, -1) @ grad).sum(2)
    grad_scores = grad @ value[:, :, None].transpose(-2, -1).float() - correction.reshape(*shape, 1)
    grad_scores = weights * grad_scores * size**-0.5
    grad_key = (grad_scores.transpose(-2, -1) @ query).sum(2)
    grad_query = (grad_scores @ key[:, :, None].float()).reshape(batch, heads, length, size)
    return grad_query, grad_key, grad_value
