"""Mixture of experts: a router sends each token to its best experts; nothing is dropped.

Shape suffixes: T tokens, D hidden, N experts, G groups of experts, M experts of a group, K experts of one token,
I width of an expert, R rows (a row is one token at one of its experts).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.contract.models import MoEShape
from trainer.models.feed_forward import FeedForward

Experts = Callable[[Tensor, Tensor], Tensor]


class Router(nn.Module):
    """Choose the experts of each token. Scores are always fp32: rounding could choose other experts."""

    def __init__(self, shape: MoEShape, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.num_experts, hidden_size))
        self._shape = shape

    def forward(self, x_TD: Tensor, balance_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return (weights in fp32, chosen experts), [T, K] each. `balance_N` is added to the scores only to choose."""
        logits_TN = functional.linear(x_TD.float(), self.weight.float())
        scores_TN = logits_TN.softmax(-1) if self._shape.scoring == "softmax" else logits_TN.sigmoid()
        chosen_TK = self._limit_to_groups(scores_TN + balance_N).topk(self._shape.experts_per_token, dim=-1).indices
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
    """SwiGLU experts as stacked matrices: one grouped matrix product each, whatever the counts."""

    def __init__(self, num_experts: int, hidden_size: int, expert_size: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(num_experts, expert_size, hidden_size))
        self.up = nn.Parameter(torch.empty(num_experts, expert_size, hidden_size))
        self.down = nn.Parameter(torch.empty(num_experts, hidden_size, expert_size))

    def forward(self, rows_RD: Tensor, counts_N: Tensor) -> Tensor:
        """Return the experts' outputs, [R, D]. The first `counts_N[0]` rows go to expert 0, and so on; counts may be
        0."""
        ends_N = counts_N.cumsum(0).to(torch.int32)
        gated_RI = functional.silu(grouped_linear(rows_RD, self.gate, ends_N))
        return grouped_linear(gated_RI * grouped_linear(rows_RD, self.up, ends_N), self.down, ends_N)


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
        self.router = Router(shape, hidden_size)
        self.experts = GroupedExperts(shape.num_experts, hidden_size, shape.expert_size)
        self.run_experts: Experts | None = None
        self.shared = (
            FeedForward(hidden_size, shape.shared_experts * shape.expert_size) if shape.shared_experts else None
        )
        self.register_buffer("balance", torch.zeros(shape.num_experts))
        self.register_buffer("load", torch.zeros(shape.num_experts), persistent=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the weighted outputs of each token's experts, [B, S, D]."""
        x_TD = x_BSD.flatten(0, 1)
        weights_TK, chosen_TK = self.router(x_TD, self.balance)
        experts_R, order_R = chosen_TK.flatten().sort(stable=True)
        counts_N = count_sorted(experts_R, self.num_experts)
        if torch.is_grad_enabled():
            self.load.add_(counts_N)
        inverse_R = invert(order_R)
        run = self.run_experts or self.experts
        results_RD = run(_RowsOfTokens.apply(x_TD, order_R, inverse_R, self.experts_per_token), counts_N)
        results_TKD = permute_rows(results_RD, inverse_R, order_R).view(*chosen_TK.shape, -1)
        mixed_TD = (results_TKD * weights_TK[..., None].to(results_TKD.dtype)).sum(1)
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
