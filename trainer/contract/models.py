"""Decoder shapes: the named Llama-style models, and what follows from a shape by arithmetic alone."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.contract.base import SpecModel

Dimension = Annotated[int, Field(ge=1)]


class MoEShape(SpecModel):
    """Mixture of experts in place of the feed-forward of every layer but the first `first_dense_layers`.

    Each token goes to `experts_per_token` of `num_experts` experts of width `expert_size`, and through
    `shared_experts` more that see every token. `balance_rate` steps a per-expert bias that only the choice of experts
    sees, towards equal load (Wang et al. 2024, auxiliary-loss-free balancing); 0 leaves the choice to the scores.
    """

    num_experts: Annotated[int, Field(ge=2, le=4096)]
    experts_per_token: Dimension
    expert_size: Dimension
    shared_experts: Annotated[int, Field(ge=0)] = 0
    first_dense_layers: Annotated[int, Field(ge=0)] = 0
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    normalise_weights: bool = True
    weight_scale: Annotated[float, Field(gt=0)] = 1.0
    balance_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _enough_experts(self) -> "MoEShape":
        if self.experts_per_token > self.num_experts:
            raise ValueError(f"experts_per_token {self.experts_per_token} exceeds num_experts {self.num_experts}")
        return self


class RopeScaling(SpecModel):
    """Rotary positions stretched as Llama 3.1 does: waves longer than `original_length / low_frequency_factor` by
    `factor`, those shorter than `original_length / high_frequency_factor` not at all, smoothly in between."""

    factor: Annotated[float, Field(ge=1)]
    low_frequency_factor: Annotated[float, Field(gt=0)] = 1.0
    high_frequency_factor: Annotated[float, Field(gt=0)] = 4.0
    original_length: Dimension

    @model_validator(mode="after")
    def _in_order(self) -> "RopeScaling":
        if self.low_frequency_factor >= self.high_frequency_factor:
            raise ValueError(
                f"low_frequency_factor {self.low_frequency_factor} must be below high_frequency_factor "
                f"{self.high_frequency_factor}"
            )
        return self


class ModelShape(SpecModel):
    """A Llama-style decoder. `num_heads` is a multiple of `num_kv_heads`; without `head_dim`, `hidden_size` is a
    multiple of `num_heads`. `qk_norm`: queries and keys are normalised per head, as Qwen3 does."""

    hidden_size: Dimension
    num_layers: Dimension
    num_heads: Dimension
    num_kv_heads: Dimension
    intermediate_size: Dimension
    head_dim: Dimension | None = None
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    tie_embeddings: bool = False
    qk_norm: bool = False
    moe: MoEShape | None = None

    @model_validator(mode="after")
    def _divisible(self) -> "ModelShape":
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_size % 2:
            raise ValueError(f"head size {self.head_size} (head_dim, or hidden_size / num_heads) must be even for RoPE")
        if self.moe is not None and self.moe.first_dense_layers >= self.num_layers:
            raise ValueError(
                f"moe.first_dense_layers {self.moe.first_dense_layers} leaves none of num_layers {self.num_layers} "
                "with experts; lower it or leave moe out"
            )
        return self

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_heads

    def is_moe_layer(self, layer: int) -> bool:
        return self.moe is not None and layer >= self.moe.first_dense_layers

    def attention_parameters(self) -> int:
        """Of one layer, norms left out: what matrix products use."""
        return self.hidden_size * self.head_size * (2 * self.num_heads + 2 * self.num_kv_heads)

    def mlp_parameters(self, layer: int, *, active: bool = False) -> int:
        """Of one layer's feed-forward; `active`: only what one token passes through."""
        if self.moe is None or not self.is_moe_layer(layer):
            return 3 * self.hidden_size * self.intermediate_size
        experts = (self.moe.experts_per_token if active else self.moe.num_experts) + self.moe.shared_experts
        return 3 * self.hidden_size * self.moe.expert_size * experts + self.moe.num_experts * self.hidden_size

    def layer_parameters(self, layer: int) -> int:
        norms = 2 * self.hidden_size + (2 * self.head_size if self.qk_norm else 0)
        return self.attention_parameters() + self.mlp_parameters(layer) + norms

    def num_parameters(self, vocab_size: int) -> int:
        """All trainable parameters, embeddings included (tied ones once)."""
        embeddings = vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return sum(map(self.layer_parameters, range(self.num_layers))) + self.hidden_size + embeddings

    def adapter_parameters(self, rank: int, targets: Iterable[str]) -> int:
        """Of low-rank adapters beside these matrices of every layer; routed experts have none."""
        width, kv_width = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        attention = {"query": width, "key": kv_width, "value": kv_width, "output": width}
        chosen, total = set(targets), 0
        for layer in range(self.num_layers):
            total += sum(rank * (self.hidden_size + size) for name, size in attention.items() if name in chosen)
            middle = self.intermediate_size
            if self.moe is not None and self.is_moe_layer(layer):
                middle = self.moe.shared_experts * self.moe.expert_size
            if middle:
                total += rank * (self.hidden_size + middle) * len(chosen & {"gate", "up", "down"})
        return total

    def flops_per_token(self, vocab_size: int, sequence_length: int, *, causal: bool) -> int:
        """Training FLOPs (forward and backward) of one token.

        6 per matmul parameter that the token passes through plus attention scores, `12 * layers * heads * head size *
        sequence` as PaLM (Chowdhery et al. 2022, appendix B) counts them; `causal` halves the attention term, since
        a causal kernel computes half of the square. The embedding look-up is no matmul.
        """
        matmul = sum(
            self.attention_parameters() + self.mlp_parameters(layer, active=True) for layer in range(self.num_layers)
        )
        matmul += vocab_size * self.hidden_size  # the output head
        scores = 12 * self.num_layers * self.num_heads * self.head_size * sequence_length
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
    "moe-1m": ModelShape(
        hidden_size=128,
        num_layers=4,
        num_heads=4,
        num_kv_heads=2,
        intermediate_size=344,
        tie_embeddings=True,
        moe=MoEShape(
            num_experts=8,
            experts_per_token=2,
            expert_size=96,
            shared_experts=1,
            first_dense_layers=1,
            scoring="sigmoid",
            balance_rate=1e-3,
        ),
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
