"""Decoder shapes: the named Llama-style models, and what follows from a shape by arithmetic alone."""

from typing import Annotated

from pydantic import Field, model_validator

from trainer.contract.base import SpecModel

Dimension = Annotated[int, Field(ge=1)]


class ModelShape(SpecModel):
    """A Llama-style decoder. `hidden_size` is a multiple of `num_heads`, `num_heads` of `num_kv_heads`."""

    hidden_size: Dimension
    num_layers: Dimension
    num_heads: Dimension
    num_kv_heads: Dimension
    intermediate_size: Dimension
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    tie_embeddings: bool = False

    @model_validator(mode="after")
    def _divisible(self) -> "ModelShape":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_size % 2:
            raise ValueError(f"head size {self.head_size} (hidden_size / num_heads) must be even for RoPE")
        return self

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    def num_parameters(self, vocab_size: int) -> int:
        """All trainable parameters, embeddings included (tied ones once)."""
        attention = self.hidden_size * self.head_size * (2 * self.num_heads + 2 * self.num_kv_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        norms = 2 * self.hidden_size
        embeddings = vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return self.num_layers * (attention + mlp + norms) + self.hidden_size + embeddings

    def flops_per_token(self, vocab_size: int, sequence_length: int, *, causal: bool) -> int:
        """Training FLOPs (forward and backward) of one token.

        6 per matmul parameter plus attention scores, `12 * layers * hidden * sequence` as PaLM
        (Chowdhery et al. 2022, appendix B) counts them; `causal` halves the attention term, since
        a causal kernel computes half of the square. The embedding look-up is no matmul.
        """
        attention = self.hidden_size * self.head_size * (2 * self.num_heads + 2 * self.num_kv_heads)
        matmul = self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)
        matmul += vocab_size * self.hidden_size  # the output head
        scores = 12 * self.num_layers * self.hidden_size * sequence_length
        return 6 * matmul + (scores // 2 if causal else scores)


MODELS: dict[str, ModelShape] = {
    "llama-1m": ModelShape(
        hidden_size=128,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=344,
        tie_embeddings=True,
    ),
    "llama-10m": ModelShape(
        hidden_size=320,
        num_layers=6,
        num_heads=5,
        num_kv_heads=5,
        intermediate_size=864,
        tie_embeddings=True,
    ),
    "llama-100m": ModelShape(
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        num_kv_heads=4,
        intermediate_size=2048,
        tie_embeddings=True,
    ),
    "llama-1b": ModelShape(
        hidden_size=2048,
        num_layers=16,
        num_heads=32,
        num_kv_heads=8,
        intermediate_size=8192,
        rope_theta=500_000.0,
        tie_embeddings=True,
    ),
    "llama-8b": ModelShape(
        hidden_size=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        intermediate_size=14336,
        rope_theta=500_000.0,
    ),
    "llama-70b": ModelShape(
        hidden_size=8192,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        intermediate_size=28672,
        rope_theta=500_000.0,
    ),
    "llama-405b": ModelShape(
        hidden_size=16384,
        num_layers=126,
        num_heads=128,
        num_kv_heads=8,
        intermediate_size=53248,
        rope_theta=500_000.0,
    ),
}
