"""Cross-entropy of a linear head, computed in chunks of tokens so that the logits of a batch are never all in memory.

The forward pass of the summed loss computes the gradients too, while it has the probabilities of a chunk; it stores
only these gradients for the backward pass, and computes each exponential once. What a loss makes of the
log-probabilities of the targets is known only after all of them, so their backward pass computes the probabilities
again.

Shape suffixes: T tokens, C tokens of a chunk, D hidden, V vocabulary entries of this rank.
"""

from collections.abc import Callable, Sequence
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


def linear_log_probabilities(
    x_TD: Tensor,
    weight_VD: Tensor,
    targets_T: Tensor,
    vocab_start_index: int = 0,
    all_reduce: AllReduce | None = None,
    cap: float | None = None,
) -> Tensor:
    """Return the log-probability of each target, [T] in fp32, 0 for those that are IGNORED. The arguments are those of
    `linear_cross_entropy`."""
    return _LinearLogProbabilities.apply(x_TD, weight_VD, targets_T, vocab_start_index, all_reduce, cap)


def cap_logits(logits: Tensor, cap: float | None) -> Tensor:
    """Return cap x tanh(logits / cap); None: the logits."""
    return logits if cap is None else cap * (logits / cap).tanh()


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, z_loss: float, vocab_start_index: int,
        all_reduce: AllReduce | None, cap: float | None,
    ) -> Tensor:  # fmt: skip
        gradients = _Gradients(x_TD, weight_VD, ctx.needs_input_grad)
        total = torch.zeros((), dtype=torch.float32, device=x_TD.device)
        for part in gradients.chunks:
            loss_C, grad_CV = _chunk(x_TD[part] @ weight_VD.T, targets_T[part] - vocab_start_index,
                                     targets_T[part] != IGNORED, z_loss, all_reduce, cap)  # fmt: skip
            total += loss_C.sum()
            gradients.add(part, grad_CV)
        ctx.save_for_backward(*[grad for grad in (gradients.of_x, gradients.of_weight) if grad is not None])
        ctx.dtype = weight_VD.dtype
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = [tensor * grad for tensor in ctx.saved_tensors]  # the factor stays in fp32 for both
        grad_x = saved.pop(0) if ctx.needs_input_grad[0] else None
        grad_weight = saved.pop(0).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None, None, None, None


class _LinearLogProbabilities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, vocab_start_index: int,
        all_reduce: AllReduce | None, cap: float | None,
    ) -> Tensor:  # fmt: skip
        found_T = torch.empty(x_TD.shape[0], dtype=torch.float32, device=x_TD.device)
        for part in _chunks(x_TD, weight_VD):
            loss_C, _ = _chunk(x_TD[part] @ weight_VD.T, targets_T[part] - vocab_start_index,
                               targets_T[part] != IGNORED, 0.0, all_reduce, cap)  # fmt: skip
            found_T[part] = -loss_C
        ctx.save_for_backward(x_TD, weight_VD, targets_T)
        ctx.vocab_start_index, ctx.all_reduce, ctx.cap = vocab_start_index, all_reduce, cap
        return found_T

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, weight_VD, targets_T = ctx.saved_tensors
        gradients = _Gradients(x_TD, weight_VD, ctx.needs_input_grad)
        for part in gradients.chunks:
            _, grad_CV = _chunk(x_TD[part] @ weight_VD.T, targets_T[part] - ctx.vocab_start_index,
                                targets_T[part] != IGNORED, 0.0, ctx.all_reduce, ctx.cap)  # fmt: skip
            grad_CV *= -grad_T[part][:, None]
            gradients.add(part, grad_CV)
        grad_weight = gradients.of_weight
        return (
            gradients.of_x, None if grad_weight is None else grad_weight.to(weight_VD.dtype), None, None, None, None,
        )  # fmt: skip


class _Gradients:
    """The gradients of the hidden states and of the head's matrix, chunk by chunk; None where they are not needed."""

    def __init__(self, x_TD: Tensor, weight_VD: Tensor, needs_grad: Sequence[bool]) -> None:
        self.chunks = _chunks(x_TD, weight_VD)
        self.of_x = torch.empty_like(x_TD) if needs_grad[0] else None
        self.of_weight: Tensor | None = None
        self._x_TD, self._weight_VD, self._needs_weight = x_TD, weight_VD, needs_grad[1]

    def add(self, part: slice, grad_CV: Tensor) -> None:
        """Add a chunk, of which `grad_CV` is the gradient of the logits, in fp32."""
        x_CD = self._x_TD[part]
        grad_CV = grad_CV.to(x_CD.dtype)
        if self.of_x is not None:
            torch.mm(grad_CV, self._weight_VD, out=self.of_x[part])
        if not self._needs_weight:
            return
        if self.of_weight is None:
            self.of_weight = grad_CV.T @ x_CD
            if len(self.chunks) > 1:
                self.of_weight = self.of_weight.float()
        elif self.of_weight.dtype == x_CD.dtype:
            self.of_weight.addmm_(grad_CV.T, x_CD)
        else:
            self.of_weight += grad_CV.T @ x_CD


def _chunks(x_TD: Tensor, weight_VD: Tensor) -> list[slice]:
    """Return the chunks of tokens, so large that the fp32 logits of each are of the size for the device."""
    most = CHUNK_BYTES if x_TD.device.type == "cpu" else ACCELERATOR_CHUNK_BYTES
    rows = max(1, most // (4 * weight_VD.shape[0]))
    return [slice(start, start + rows) for start in range(0, x_TD.shape[0], rows)]


def _chunk(
    logits_CV: Tensor, local_ids_C: Tensor, counted_C: Tensor, z_loss: float, all_reduce: AllReduce | None,
    cap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (loss of each token, [C], 0 where `counted_C` is false; the gradient of their sum with respect to the
    logits, [C, V]).

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
    return loss_C.where(counted_C, 0.0), logits_CV
