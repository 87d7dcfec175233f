"""Mixture of experts: a router sends each token to its best experts; nothing is dropped.

Shape suffixes: T tokens, D hidden, N experts, K experts of one token, I width of an expert, R rows (a row is one token
at one of its experts).
"""

from collections.abc import Callable

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
        chosen_TK = (scores_TN + balance_N).topk(self._shape.experts_per_token, dim=-1).indices
        weights_TK = scores_TN.gather(-1, chosen_TK)
        if self._shape.normalise_weights:
            weights_TK = weights_TK / (weights_TK.sum(-1, keepdim=True) + 1e-20)
        return weights_TK * self._shape.weight_scale, chosen_TK


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

    @torch.compiler.disable  # how many rows an expert gets is different each time
    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the weighted outputs of each token's experts, [B, S, D]."""
        x_TD = x_BSD.flatten(0, 1)
        weights_TK, chosen_TK = self.router(x_TD, self.balance)
        order_R = chosen_TK.flatten().argsort(stable=True)
        counts_N = torch.bincount(chosen_TK.flatten(), minlength=self.num_experts)
        if torch.is_grad_enabled():
            self.load += counts_N
        rows_RD = x_TD[:, None].expand(-1, self.experts_per_token, -1).flatten(0, 1)[order_R]
        run = self.run_experts or self.experts
        results_TKD = run(rows_RD, counts_N)[order_R.argsort()].view(*chosen_TK.shape, -1)
        mixed_TD = (results_TKD * weights_TK[..., None].to(results_TKD.dtype)).sum(1)
        if self.shared is not None:
            mixed_TD = mixed_TD + self.shared(x_TD)
        return mixed_TD.view_as(x_BSD)
