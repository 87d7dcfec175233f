"""Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Shape suffixes: B batch, S sequence, D hidden, H heads, K key-value heads, E head size, V vocabulary.
The parameter names are ours; `export.names` maps them to Hugging Face's, whose rotary convention
(rotate the two halves, not neighbouring pairs) is used here so that weights need no permutation.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from trainer.contract.models import ModelShape

INITIAL_STD = 0.02


class Rotary(nn.Module):
    """Cosine and sine tables, [S, E], in fp32; made on first use and kept per device, never saved."""

    def __init__(self, head_size: int, theta: float, sequence_length: int) -> None:
        super().__init__()
        self.head_size, self.theta = head_size, theta
        cosine, sine = self._tables(sequence_length, torch.device("cpu"))
        self.register_buffer("cosine_SE", cosine, persistent=False)
        self.register_buffer("sine_SE", sine, persistent=False)

    def _tables(self, sequence_length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        powers = torch.arange(0, self.head_size, 2, dtype=torch.float32, device=device) / self.head_size
        angles = torch.outer(
            torch.arange(sequence_length, dtype=torch.float32, device=device), 1.0 / self.theta**powers
        )
        angles_SE = torch.cat([angles, angles], dim=-1)
        return angles_SE.cos(), angles_SE.sin()

    def forward(self, x_BHSE: Tensor) -> Tensor:
        length = x_BHSE.shape[-2]
        cosine, sine = self.cosine_SE[:length].to(x_BHSE.dtype), self.sine_SE[:length].to(x_BHSE.dtype)
        first, second = x_BHSE.chunk(2, dim=-1)
        return x_BHSE * cosine + torch.cat([-second, first], dim=-1) * sine


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_size = shape.num_heads, shape.num_kv_heads, shape.head_size
        kv_width = shape.num_kv_heads * shape.head_size
        self.query = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)
        self.key = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.value = nn.Linear(shape.hidden_size, kv_width, bias=False)
        self.output = nn.Linear(shape.hidden_size, shape.hidden_size, bias=False)

    def forward(self, x_BSD: Tensor, rotary: Rotary) -> Tensor:
        batch, length, _ = x_BSD.shape
        query_BHSE = rotary(self.query(x_BSD).view(batch, length, self.num_heads, self.head_size).transpose(1, 2))
        key_BKSE = rotary(self.key(x_BSD).view(batch, length, self.num_kv_heads, self.head_size).transpose(1, 2))
        value_BKSE = self.value(x_BSD).view(batch, length, self.num_kv_heads, self.head_size).transpose(1, 2)
        mixed_BHSE = functional.scaled_dot_product_attention(
            query_BHSE, key_BKSE, value_BKSE, is_causal=True, enable_gqa=self.num_heads != self.num_kv_heads
        )
        return self.output(mixed_BHSE.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x_BSD)) * self.up(x_BSD))


class Block(nn.Module):
    """`recompute`: keep only the block's input for the backward pass, and run the forward again there."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.recompute = False
        self.attention_norm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.mlp = FeedForward(shape)

    def forward(self, x_BSD: Tensor, rotary: Rotary) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._compute, x_BSD, rotary, use_reentrant=False)
        return self._compute(x_BSD, rotary)

    def _compute(self, x_BSD: Tensor, rotary: Rotary) -> Tensor:
        x_BSD = x_BSD + self.attention(self.attention_norm(x_BSD), rotary)
        return x_BSD + self.mlp(self.mlp_norm(x_BSD))


class Decoder(nn.Module):
    """Tokens [B, S] to logits [B, S, V], or to the summed loss when targets are given."""

    def __init__(self, shape: ModelShape, vocab_size: int, sequence_length: int) -> None:
        super().__init__()
        self.shape, self.vocab_size = shape, vocab_size
        self.embedding = nn.Embedding(vocab_size, shape.hidden_size)
        self.rotary = Rotary(shape.head_size, shape.rope_theta, sequence_length)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=shape.norm_epsilon)
        self.head = nn.Linear(shape.hidden_size, vocab_size, bias=False)
        if shape.tie_embeddings:
            self.head.weight = self.embedding.weight

    def forward(self, tokens_BS: Tensor, targets_BS: Tensor | None = None) -> Tensor:
        x_BSD = self.embedding(tokens_BS)
        for block in self.blocks:
            x_BSD = block(x_BSD, self.rotary)
        logits_BSV = self.head(self.norm(x_BSD))
        if targets_BS is None:
            return logits_BSV
        return functional.cross_entropy(
            logits_BSV.view(-1, self.vocab_size).float(), targets_BS.reshape(-1), reduction="sum"
        )


def initialise(model: Decoder, seed: int) -> None:
    """Normal weights, narrower for what writes to the residual stream (Radford et al. 2019, 1/sqrt(2 layers)).

    Drawn on the CPU parameter by parameter in a fixed order: the same seed gives the same model on any mesh.
    """
    generator = torch.Generator().manual_seed(seed)
    residual_std = INITIAL_STD / (2 * model.shape.num_layers) ** 0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                writes_residual = name.endswith(("attention.output.weight", "mlp.down.weight"))
                parameter.normal_(0.0, residual_std if writes_residual else INITIAL_STD, generator=generator)
