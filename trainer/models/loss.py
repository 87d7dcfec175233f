"""Cross-entropy of a linear head, in chunks of rows: the logits of all tokens are never in memory together.

The gradient is made in the forward pass, while a chunk's probabilities are at hand: nothing is kept but the gradients
themselves, and no exponential is taken twice.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from trainer.data.packing import IGNORED

CHUNK_BYTES = 8 * 2**20
"""Of one chunk's logits in fp32: small enough to stay in a CPU's cache, large enough for efficient products."""
ACCELERATOR_CHUNK_BYTES = 512 * 2**20

Combine = Callable[[Tensor, "ReduceOp.RedOpType"], None]


def linear_cross_entropy(
    x_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    z_loss: float = 0.0,
    vocab_start_index: int = 0,
    combine: Combine | None = None,
) -> Tensor:
    """Return the summed loss over the targets that are not IGNORED, a scalar in fp32.

    `z_loss` adds that much of the squared log of the softmax's denominator (Chowdhery et al. 2022, section 5). Where
    the vocabulary is sharded over ranks, `weight_VD` has the rows from `vocab_start_index` on and
    `combine(tensor, operation)` reduces in place over these ranks; the gradient of `x_TD` is then this rank's part of a
    sum.
    """
    return _LinearCrossEntropy.apply(x_TD, weight_VD, targets_T, z_loss, vocab_start_index, combine)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, z_loss: float, vocab_start_index: int,
        combine: Combine | None,
    ) -> Tensor:  # fmt: skip
        wants_x, wants_weight = ctx.needs_input_grad[:2]
        most = CHUNK_BYTES if x_TD.device.type == "cpu" else ACCELERATOR_CHUNK_BYTES
        rows = max(1, most // (4 * weight_VD.shape[0]))
        num_chunks = -(-x_TD.shape[0] // rows)
        grad_x = torch.empty_like(x_TD) if wants_x else None
        grad_weight: Tensor | None = None
        total = torch.zeros((), dtype=torch.float32, device=x_TD.device)
        for number in range(num_chunks):
            part = slice(number * rows, (number + 1) * rows)
            x_CD = x_TD[part]
            loss, grad_CV = _chunk(x_CD @ weight_VD.T, targets_T[part] - vocab_start_index, targets_T[part] != IGNORED,
                                   z_loss, combine)  # fmt: skip
            total += loss
            grad_CV = grad_CV.to(x_TD.dtype)
            if grad_x is not None:
                torch.mm(grad_CV, weight_VD, out=grad_x[part])
            if wants_weight:
                if grad_weight is None:
                    grad_weight = grad_CV.T @ x_CD
                    if num_chunks > 1:
                        grad_weight = grad_weight.float()
                elif grad_weight.dtype == x_CD.dtype:
                    grad_weight.addmm_(grad_CV.T, x_CD)
                else:
                    grad_weight += grad_CV.T @ x_CD
        ctx.save_for_backward(*[grad for grad in (grad_x, grad_weight) if grad is not None])
        ctx.dtype = weight_VD.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = [tensor * grad.to(tensor.dtype) for tensor in ctx.saved_tensors]
        grad_x = saved.pop(0) if ctx.needs_input_grad[0] else None
        grad_weight = saved.pop(0).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None, None, None


def _chunk(
    logits_CV: Tensor, words_C: Tensor, counted_C: Tensor, z_loss: float, combine: Combine | None
) -> tuple[Tensor, Tensor]:
    """(loss summed over the counted rows, its gradient by the logits, in fp32 and in their place)."""
    logits_CV = logits_CV.float()
    highest_C = logits_CV.amax(-1)
    if combine is not None:
        combine(highest_C, ReduceOp.MAX)
    logits_CV -= highest_C[:, None]
    is_here_C = counted_C & (words_C >= 0) & (words_C < logits_CV.shape[1])
    words_C1 = words_C.where(is_here_C, 0)[:, None]
    of_target_C = logits_CV.gather(-1, words_C1)[:, 0].where(is_here_C, 0.0)
    logits_CV.exp_()
    sums_2C = torch.stack([logits_CV.sum(-1), of_target_C])
    if combine is not None:
        combine(sums_2C, ReduceOp.SUM)
    sum_C, of_target_C = sums_2C.unbind()
    log_sum_C = sum_C.log()
    log_z_C = log_sum_C + highest_C
    loss_C = log_sum_C - of_target_C
    factor_C = 1.0 / sum_C
    if z_loss:
        loss_C = loss_C + z_loss * log_z_C.square()
        factor_C = factor_C * (1.0 + 2.0 * z_loss * log_z_C)
    logits_CV *= factor_C.where(counted_C, 0.0)[:, None]
    logits_CV.scatter_add_(-1, words_C1, -is_here_C.to(logits_CV.dtype)[:, None])
    return loss_C.where(counted_C, 0.0).sum(), logits_CV
