"""The feed-forward part of a layer: SwiGLU (Shazeer 2020)."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional

EnterBy = Callable[[Tensor, Sequence[nn.Module]], Sequence[Tensor]]
LeaveBy = Callable[[Tensor, nn.Module], Tensor]


def each_product(x: Tensor, linears: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Return the products of one input with several linear layers."""
    return [linear(x) for linear in linears]


def product(x: Tensor, linear: nn.Module) -> Tensor:
    """Return the product with a linear layer."""
    return linear(x)


class FeedForward(nn.Module):
    """`enter_by` and `leave_by` are replaced where the first and the last products of a layer exchange what they
    multiply while they go on."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.enter_by: EnterBy = each_product
        self.leave_by: LeaveBy = product
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return SwiGLU of the input, [B, S, D]."""
        gate, up = self.enter_by(x_BSD, (self.gate, self.up))
        return self.leave_by(functional.silu(gate) * up, self.down)
