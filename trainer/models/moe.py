"""Mixture of experts: a router sends each token to its best experts; nothing is dropped.

Shape suffixes: T tokens, D hidden, N experts, G groups of experts, M experts of a group, K experts of one token,
I width of an expert, R rows (a row is one token at one of its experts), E outputs of an expert's matrix.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.contract.models import MoEShape
from trainer.models.feed_forward import FeedForward

Experts = Callable[[Tensor, Tensor], Tensor]
CLAMPED_GATE_FACTOR = 1.702


class Router(nn.Module):
    """Choose the experts of each token. Scores are always fp32: rounding could choose other experts."""

    def __init__(self, shape: MoEShape, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(shape.num_experts)) if shape.biases else None
        self._shape = shape

    def forward(self, x_TD: Tensor, balance_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights in fp32, chosen experts), [T, K] each. `balance_N` is added to the scores only to choose."""
        bias_N = None if self.bias is None else self.bias.float()
        logits_TN = functional.linear(x_TD.float(), self.weight.float(), bias_N)
        scores_TN = logits_TN.softmax(-1) if self._shape.scoring == "softmax" else logits_TN.sigmoid()
        # Different logits can have the same sigmoid: Llama 4, which balances no experts, chooses by logits.
        ranked_TN = logits_TN if self._shape.weigh_inputs else self._limit_to_groups(scores_TN + balance_N)
        chosen_TK = ranked_TN.topk(self._shape.experts_per_token, dim=-1).indices
        weights_TK = scores_TN.gather(-1, chosen_TK)
        if self._shape.normalise_weights:
            weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
        return weights_TK * self._shape.weight_scale, chosen_TK

    def _limit_to_groups(self, scores_TN: Tensor) -> Tensor:
        """Return the scores, with -inf for experts outside of a token's best groups (DeepSeek-AI 2024, DeepSeek-V2 and
        V3)."""
        if self._shape.num_groups == 1:
            return scores_TN
        scores_TGM = scores_TN.unflatten(-1, (self._shape.num_groups, -1))
        highest = 2 if self._shape.scoring == "sigmoid" else 1
        groups_TG = scores_TGM.topk(highest, dim=-1).values.sum(-1)
        best = groups_TG.topk(self._shape.groups_per_token, dim=-1).indices
        is_out_TG = torch.ones_like(groups_TG, dtype=torch.bool).scatter_(-1, best, value=False)
        return scores_TGM.masked_fill(is_out_TG[..., None], float("-inf")).flatten(-2)


class GroupedExperts(nn.Module):
    """SwiGLU experts as stacked matrices: one grouped matrix product each, whatever the counts. With biases, those of
    `down` are of the outputs from `down_bias_start` on: tensor ranks each have some, since their outputs are summed."""

    def __init__(self, shape: MoEShape, hidden_size: int) -> None:
        super().__init__()
        num_experts, size = shape.num_experts, shape.expert_size
        self.gate = nn.Parameter(torch.empty(num_experts, size, hidden_size))
        self.up = nn.Parameter(torch.empty(num_experts, size, hidden_size))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_size, size))
        self.gate_bias, self.up_bias, self.down_bias = (
            nn.Parameter(torch.empty(num_experts, width)) if shape.biases else None
            for width in (size, size, hidden_size)
        )
        self.down_bias_start = 0
        self._limit = shape.swiglu_limit

    def forward(self, rows_RD: Tensor, counts_N: Tensor) -> Tensor:
        """Return the experts' outputs, [R, D]. The first `counts_N[0]` rows go to expert 0, and so on; counts may be
        0."""
        ends_N = counts_N.cumsum(0).to(torch.int32)
        gate_RI, up_RI = grouped_linear(rows_RD, self.gate, ends_N), grouped_linear(rows_RD, self.up, ends_N)
        gate_RI, up_RI = add_biases(gate_RI, self.gate_bias, counts_N), add_biases(up_RI, self.up_bias, counts_N)
        if self._limit is None:
            gated_RI = functional.silu(gate_RI) * up_RI
        else:
            gated_RI = clamped_swiglu(gate_RI, up_RI, self._limit)
        down_RD = grouped_linear(gated_RI, self.down, ends_N)
        return add_biases(down_RD, self.down_bias, counts_N, self.down_bias_start)


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """Return what `MoEShape.swiglu_limit` describes."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * (CLAMPED_GATE_FACTOR * gate).sigmoid() * (up + 1.0)


def add_biases(rows_RE: Tensor, bias_NE: Tensor | None, counts_N: Tensor, start: int = 0) -> Tensor:
    """Add to each row the bias of its expert, from column `start` on, where there are biases."""
    if bias_NE is None:
        return rows_RE
    bias_NE = functional.pad(bias_NE, (start, rows_RE.shape[1] - start - bias_NE.shape[1]))
    return rows_RE + bias_NE.repeat_interleave(counts_N, dim=0, output_size=rows_RE.shape[0])


def grouped_linear(rows_RD: Tensor, weight_NED: Tensor, ends_N: Tensor) -> Tensor:
    """Multiply the rows up to `ends_N[n]` by the transposed matrix of expert n, [R, E].

    Without rows, a plain product is used: the grouped kernel gives the weights no gradient then, or an undefined
    result.
    """
    if rows_RD.shape[0] == 0:
        return rows_RD @ weight_NED.sum(0).T
    return functional.grouped_mm(rows_RD, weight_NED.transpose(-2, -1), offs=ends_N)


class MixtureOfExperts(nn.Module):
    """A router and its experts, and shared experts that process every token.

    Expert parallelism replaces `run_experts`. The buffer `load`, [N], counts the tokens of each expert since the last
    step; the buffer `balance`, [N], is the bias that `parallel.balance` moves by `MoEShape.balance_rate`.
    """

    def __init__(self, shape: MoEShape, hidden_size: int) -> None:
        super().__init__()
        self.num_experts, self.experts_per_token = shape.num_experts, shape.experts_per_token
        self.router, self._weighs_inputs = Router(shape, hidden_size), shape.weigh_inputs
        self.experts = GroupedExperts(shape, hidden_size)
        self.run_experts: Experts | None = None
        self.shared = (
            FeedForward(hidden_size, shape.shared_experts * shape.expert_size) if shape.shared_experts else None
        )
        self.register_buffer("balance", torch.zeros(shape.num_experts))
        self.register_buffer("load", torch.zeros(shape.num_experts), persistent=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the sum of the weighted outputs of each token's experts, or with `MoEShape.weigh_inputs` of their
        outputs for weighted inputs, [B, S, D]."""
        x_TD = x_BSD.flatten(0, 1)
        weights_TK, chosen_TK = self.router(x_TD, self.balance)
        experts_R, order_R = chosen_TK.flatten().sort(stable=True)
        counts_N = count_sorted(experts_R, self.num_experts)
        if torch.is_grad_enabled():
            self.load.add_(counts_N)
        inverse_R = invert(order_R)
        run = self.run_experts or self.experts
        rows_RD = _RowsOfTokens.apply(x_TD, order_R, inverse_R, self.experts_per_token)
        weights_TK = weights_TK.to(rows_RD.dtype)
        if self._weighs_inputs:
            rows_RD = rows_RD * permute_rows(weights_TK.view(-1, 1), order_R, inverse_R)
        results_TKD = permute_rows(run(rows_RD, counts_N), inverse_R, order_R).view(*chosen_TK.shape, -1)
        mixed_TD = (results_TKD if self._weighs_inputs else results_TKD * weights_TK[..., None]).sum(1)
        if self.shared is not None:
            mixed_TD = mixed_TD + self.shared(x_TD)
        return mixed_TD.view_as(x_BSD)


def count_sorted(experts_R: Tensor, num_experts: int) -> Tensor:
    """Return how many of the sorted `experts_R` are 0 .. num_experts - 1, [N]. Does not wait for the device, as
    `bincount` does."""
    ends_N = torch.searchsorted(experts_R, torch.arange(num_experts, device=experts_R.device), right=True)
    return ends_N.diff(prepend=ends_N.new_zeros(1))


def invert(order_R: Tensor) -> Tensor:
    """Return the inverse of a permutation, without sorting."""
    places_R = torch.arange(len(order_R), device=order_R.device)
    return torch.empty_like(order_R).scatter_(0, order_R, places_R)


def permute_rows(rows_RD: Tensor, order_R: Tensor, inverse_R: Tensor) -> Tensor:
    """Return the rows in another order. The gradients are gathered back by the inverse, not added up."""
    return _Permuted.apply(rows_RD, order_R, inverse_R)


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows_RD: Tensor, order_R: Tensor, inverse_R: Tensor) -> Tensor:
        ctx.save_for_backward(inverse_R)
        return rows_RD.index_select(0, order_R)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor | None, ...]:
        return grad_RD.index_select(0, ctx.saved_tensors[0]), None, None


class _RowsOfTokens(torch.autograd.Function):
    """The row of a token for each of its K experts, sorted by expert, from the tokens themselves: they are not copied K
    times first."""

    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, order_R: Tensor, inverse_R: Tensor, experts_per_token: int) -> Tensor:
        ctx.save_for_backward(inverse_R)
        ctx.experts_per_token = experts_per_token
        return x_TD.index_select(0, order_R // experts_per_token)

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor | None, ...]:
        grad_TKD = grad_RD.index_select(0, ctx.saved_tensors[0]).unflatten(0, (-1, ctx.experts_per_token))
        return grad_TKD.sum(1), None, None, None
