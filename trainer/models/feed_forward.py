"""The feed-forward part of a layer: SwiGLU (Shazeer 2020)."""

from torch import Tensor, nn
from torch.nn import functional


class FeedForward(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x_BSD)) * self.up(x_BSD))
