"""The feed-forward part of a layer: SwiGLU (Shazeer 2020)."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional

InputProjection = Callable[[Tensor, Sequence[nn.Module]], Sequence[Tensor]]
"""Apply several linear layers to one input."""
OutputProjection = Callable[[Tensor, nn.Module], Tensor]
"""Apply one linear layer."""


def identity(x: Tensor) -> Tensor:
    """Return the argument."""
    return x


def apply_linears(x: Tensor, linears: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Apply each linear layer to the same input."""
    return [linear(x) for linear in linears]


def apply_linear(x: Tensor, linear: nn.Module) -> Tensor:
    """Apply a linear layer."""
    return linear(x)


class FeedForward(nn.Module):
    """Gated units: down(activation(gate(x)) * up(x)), without biases; SwiGLU with `silu`.

    `project_in` applies `gate` and `up`, `project_out` applies `down`. `parallel.overlap` replaces both by functions
    that overlap the matrix products with the collectives of tensor parallelism.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: Callable[[Tensor], Tensor] = functional.silu
    ) -> None:
        super().__init__()
        self._activation = activation
        self.project_in: InputProjection = apply_linears
        self.project_out: OutputProjection = apply_linear
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the output, [B, S, D]."""
        gate, up = self.project_in(x_BSD, (self.gate, self.up))
        return self.project_out(self._activation(gate) * up, self.down)
