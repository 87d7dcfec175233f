"""Cross-entropy of a linear head, computed in chunks of tokens so that the logits of a batch are never all in memory.

The forward pass computes the gradients too, while it has the probabilities of a chunk; it stores only these gradients
for the backward pass, and computes each exponential once.

Shape suffixes: T tokens, C tokens of a chunk, D hidden, V vocabulary entries of this rank.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from trainer.data.packing import IGNORED

CHUNK_BYTES = 8 * 2**20
"""Size of a chunk's fp32 logits on a CPU: small enough for its cache, large enough for efficient matrix products."""
ACCELERATOR_CHUNK_BYTES = 512 * 2**20
"""Size of a chunk's fp32 logits on any other device."""

AllReduce = Callable[[Tensor, "ReduceOp.RedOpType"], None]


def linear_cross_entropy(
    x_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    z_loss: float = 0.0,
    vocab_start_index: int = 0,
    all_reduce: AllReduce | None = None,
    cap: float | None = None,
) -> Tensor:
    """Return the summed loss over the targets that are not IGNORED, a scalar in fp32.

    `z_loss` adds that much of the squared log of the softmax's denominator (Chowdhery et al. 2022, section 5). Where
    the vocabulary is sharded over ranks, `weight_VD` has the rows from `vocab_start_index` on and
    `all_reduce(tensor, operation)` reduces in place over these ranks; the gradient of `x_TD` is then this rank's part
    of a sum. `cap`: logits z become cap x tanh(z / cap).
    """
    return _LinearCrossEntropy.apply(x_TD, weight_VD, targets_T, z_loss, vocab_start_index, all_reduce, cap)


def cap_logits(logits: Tensor, cap: float | None) -> Tensor:
    """Return cap x tanh(logits / cap); None: the logits."""
    return logits if cap is None else cap * (logits / cap).tanh()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, z_loss: float, vocab_start_index: int,
        all_reduce: AllReduce | None, cap: float | None,
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
                                   z_loss, all_reduce, cap)  # fmt: skip
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
        saved = [tensor * grad for tensor in ctx.saved_tensors]  # the factor stays in fp32 for both
        grad_x = saved.pop(0) if ctx.needs_input_grad[0] else None
        grad_weight = saved.pop(0).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None, None, None, None


def _chunk(
    logits_CV: Tensor, local_ids_C: Tensor, counted_C: Tensor, z_loss: float, all_reduce: AllReduce | None,
    cap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (loss summed over the tokens where `counted_C` is true, its gradient with respect to the logits, [C, V]).

    Both are fp32. `local_ids_C` are target token ids minus the first id of this rank's shard of the vocabulary; ids
    outside 0 .. V-1 belong to other ranks. Overwrites `logits_CV` if it is fp32 already.
    """
    logits_CV = cap_logits(logits_CV.float(), cap)
    slope_CV = None if cap is None else 1.0 - (logits_CV / cap).square()
    highest_C = logits_CV.amax(-1)
    if all_reduce is not None:
        all_reduce(highest_C, ReduceOp.MAX)
    logits_CV -= highest_C[:, None]
    is_here_C = counted_C & (local_ids_C >= 0) & (local_ids_C < logits_CV.shape[1])
    local_ids_C1 = local_ids_C.where(is_here_C, 0)[:, None]
    of_target_C = logits_CV.gather(-1, local_ids_C1)[:, 0].where(is_here_C, 0.0)
    logits_CV.exp_()
    sums_2C = torch.stack([logits_CV.sum(-1), of_target_C])
    if all_reduce is not None:
        all_reduce(sums_2C, ReduceOp.SUM)
    sum_C, of_target_C = sums_2C.unbind()
    log_sum_C = sum_C.log()
    log_z_C = log_sum_C + highest_C
    loss_C = log_sum_C - of_target_C
    factor_C = 1.0 / sum_C
    if z_loss:
        loss_C = loss_C + z_loss * log_z_C.square()
        factor_C = factor_C * (1.0 + 2.0 * z_loss * log_z_C)
    logits_CV *= factor_C.where(counted_C, 0.0)[:, None]
    logits_CV.scatter_add_(-1, local_ids_C1, -is_here_C.to(logits_CV.dtype)[:, None])
    if slope_CV is not None:
        logits_CV *= slope_CV
    return loss_C.where(counted_C, 0.0).sum(), logits_CV
