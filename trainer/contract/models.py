"""Decoder shapes: the named Llama-style models, and what follows from a shape by arithmetic alone."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import CheckedModel, FieldConflict
from trainer.contract.positions import RopeScaling, TemperatureTuning

Dimension = Annotated[int, Field(ge=1)]
MAX_LAYERS = 1024


class MoEShape(CheckedModel):
    """Mixture of experts in place of the feed-forward part of layers. No token is dropped. A shape is refused if no
    Hugging Face layout can express it. With scoring `sigmoid` it is GLM-4 MoE or, with `mla`, DeepSeek-V3, which need
    at least 1 shared expert, or Llama 4 (with `interleaved_rope`), which has exactly 1, and alone has `weigh_inputs`
    and a `layer_interval`, but neither dense layers at its start, balancing, a scale, groups nor normalized weights.
    With `softmax` it is Qwen3 MoE (with `qk_norm`), gpt-oss (with `attention_sinks`) or Mixtral, which have neither
    shared experts, balancing, a scale nor groups; or, with `mla`, DeepSeek-V2, which needs at least 1 shared expert,
    and has neither balancing nor normalized weights. Mixtral and gpt-oss have no dense layers and only normalized
    weights, and gpt-oss alone has, and needs, `biases` and a `swiglu_limit`."""

    num_experts: Annotated[int, Field(ge=2, le=4096, examples=[64])]
    """Number of routed experts in a layer."""
    experts_per_token: Annotated[Dimension, Field(examples=[8])]
    """Number of routed experts that each token is sent to. At most `num_experts`."""
    expert_size: Annotated[Dimension, Field(examples=[1408])]
    """Intermediate size of an expert's feed-forward network."""
    num_groups: Annotated[int, Field(ge=1, exclude_if=lambda value: value == 1, examples=[8])] = 1
    """Number of groups of routed experts of which only the best are considered for a token, as in DeepSeek-V3. Divides
    `num_experts`. The score of a group is the sum of its two highest scores with scoring `sigmoid`, its highest score
    with `softmax`."""
    groups_per_token: Annotated[int, Field(ge=1, exclude_if=lambda value: value == 1, examples=[4])] = 1
    """Number of groups that the experts of a token are chosen from. At most `num_groups`."""
    shared_experts: Annotated[int, Field(ge=0)] = 0
    """Number of additional experts that process every token, computed as one network of `shared_experts` x
    `expert_size`."""
    first_dense_layers: Annotated[int, Field(ge=0)] = 0
    """Number of layers at the start of the model that have a dense feed-forward network instead of experts. Less than
    `num_layers`."""
    layer_interval: Annotated[int, Field(ge=1, exclude_if=lambda value: value == 1, examples=[2])] = 1
    """Interval of layers with experts, as in Llama 4: with 2, layers 2, 4 and so on have experts, and the others a
    dense feed-forward network. At most `num_layers`."""
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    """Function that turns the router's logits into the scores of the experts."""
    normalise_weights: bool = True
    """Whether the weights of the chosen experts of a token are divided by their sum."""
    weight_scale: Annotated[float, Field(gt=0)] = 1.0
    """Multiplier of the weights of the chosen experts, after normalization."""
    balance_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Amount by which each expert's bias moves per step towards equal load (Wang et al. 2024, auxiliary-loss-free
    balancing). The bias affects the choice of experts, but not their weights. 0 disables it."""
    biases: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the router and the matrices of the experts have biases, as in gpt-oss."""
    weigh_inputs: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the weights of the chosen experts multiply their inputs, as in Llama 4, and not their outputs. Experts
    are then chosen by the router's logits."""
    swiglu_limit: Annotated[float | None, Field(gt=0, exclude_if=lambda value: value is None, examples=[7.0])] = None
    """Limit of the gate and of the other input of experts, as in gpt-oss: the gate is at most this, and the other input
    between its negative and this. The output is then gate x sigmoid(1.702 x gate) x (other input + 1). Without it,
    experts compute SwiGLU."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.experts_per_token > self.num_experts:
            message = f"experts_per_token {self.experts_per_token} exceeds num_experts {self.num_experts}"
            yield FieldConflict("experts_per_token", message, ("num_experts",))
        if self.num_experts % self.num_groups:
            message = f"num_groups {self.num_groups} does not divide num_experts {self.num_experts}; take a divisor"
            yield FieldConflict("num_groups", message, ("num_experts",))
            return
        size = self.num_experts // self.num_groups
        if self.num_groups > 1 and self.scoring == "sigmoid" and size < 2:
            message = f"num_groups {self.num_groups} leaves 1 expert in a group, of which two give its score; lower it"
            yield FieldConflict("num_groups", message, ("num_experts",))
        if self.groups_per_token > self.num_groups:
            message = f"groups_per_token {self.groups_per_token} exceeds num_groups {self.num_groups}"
            yield FieldConflict("groups_per_token", message, ("num_groups",))
        elif self.num_groups > 1 and self.experts_per_token > self.groups_per_token * size:
            message = (
                f"groups_per_token {self.groups_per_token} of {size} experts each are too few for experts_per_token "
                f"{self.experts_per_token}; raise it"
            )
            yield FieldConflict("groups_per_token", message, ("experts_per_token", "num_groups", "num_experts"))


class MLAShape(CheckedModel):
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2): keys and values of all heads are computed from one
    compressed vector, and rotary positions have elements of their own, with one key for all heads. The fields have the
    names of Hugging Face's layout."""

    q_lora_rank: Annotated[Dimension | None, Field(examples=[1536])] = None
    """Width of compressed queries. Without it, queries are projected from the hidden state directly."""
    kv_lora_rank: Annotated[Dimension, Field(examples=[512])]
    """Width of compressed keys and values."""
    qk_nope_head_dim: Annotated[Dimension, Field(examples=[128])]
    """Number of elements of a query or key head that are not rotated by position."""
    qk_rope_head_dim: Annotated[Dimension, Field(examples=[64])]
    """Number of elements of a query or key head that are rotated by position, in pairs of neighbours. An even
    number."""
    v_head_dim: Annotated[Dimension, Field(examples=[128])]
    """Width of a value head. At most the width of a key head, `qk_nope_head_dim` + `qk_rope_head_dim`."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.qk_rope_head_dim % 2:
            message = f"qk_rope_head_dim {self.qk_rope_head_dim} must be even for RoPE"
            yield FieldConflict("qk_rope_head_dim", message)
        if self.v_head_dim > self.head_size:
            message = f"v_head_dim {self.v_head_dim} exceeds the {self.head_size} elements of a key head; lower it"
            yield FieldConflict("v_head_dim", message, ("qk_nope_head_dim", "qk_rope_head_dim"))

    @property
    def head_size(self) -> int:
        """Return the width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


_NOT_WITH_MLA = (
    "head_dim", "rotary_fraction", "qk_norm", "wide_qk_norm", "attention_bias", "fused_projections",
    "query_pre_attn_scalar", "attention_output_bias", "attention_sinks", "attn_logit_softcapping", "interleaved_rope",
    "l2_qk_norm", "no_rope_every", "temperature_tuning",
)  # fmt: skip
"""Fields of queries and keys that multi-head latent attention has no place for."""


class ModelShape(CheckedModel):
    """Dimensions of a Llama-style decoder: RMSNorm, rotary position embeddings, grouped-query attention, SwiGLU."""

    # The JSON of a shape identifies a run's checkpoints: a new field is excluded from it where it has its default.

    hidden_size: Annotated[Dimension, Field(examples=[2048])]
    """Width of the residual stream. Without `head_dim`, a multiple of `num_heads`."""
    num_layers: Annotated[int, Field(ge=1, le=MAX_LAYERS, examples=[16])]
    """Number of decoder blocks of the model."""
    num_heads: Annotated[Dimension, Field(examples=[32])]
    """Number of query heads in a layer. A multiple of `num_kv_heads`."""
    num_kv_heads: Annotated[Dimension, Field(examples=[8])]
    """Number of key and value heads in a layer."""
    intermediate_size: Annotated[Dimension, Field(examples=[8192])]
    """Width of the dense feed-forward network. Experts have `moe.expert_size` instead."""
    head_dim: Annotated[Dimension | None, Field(examples=[128])] = None
    """Width of an attention head, an even number. Without it, `hidden_size` divided by `num_heads`."""
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0
    """Base of the rotary position embeddings."""
    rope_scaling: RopeScaling | None = None
    """Scaling of the rotary position embeddings to longer sequences. Without it there is none."""
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    """Number that RMSNorm adds to the mean square to avoid division by zero."""
    tie_embeddings: bool = False
    """Whether the token embedding and the output head share their weights."""
    qk_norm: bool = False
    """Whether queries and keys are normalized per head with RMSNorm, as in Qwen3."""
    wide_qk_norm: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether queries and keys are normalized with RMSNorm over all heads together, as in OLMo 2. Not with
    `qk_norm`."""
    l2_qk_norm: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether queries and keys are divided per head by their root mean square once they are rotated by position, as in
    Llama 4: a norm without weights. Layers without positions (`no_rope_every`) do not have it."""
    norm_position: Annotated[
        Literal["before", "after", "both"], Field(exclude_if=lambda value: value == "before", examples=["after"])
    ] = "before"
    """What is normalized of attention and feed-forward network: their inputs (`before`), their outputs, as in OLMo 2
    (`after`), or both, as in Gemma 3."""
    offset_norms: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether norms multiply by 1 plus their weights, as in Gemma. Not with `wide_qk_norm`."""
    activation: Annotated[Literal["silu", "gelu_tanh"], Field(exclude_if=lambda value: value == "silu")] = "silu"
    """Function of the gate of dense feed-forward networks. Experts have `silu`, or what `moe.swiglu_limit` says."""
    scale_embeddings: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the embeddings of the input are multiplied by the square root of `hidden_size`, as in Gemma."""
    query_pre_attn_scalar: Annotated[
        Dimension | None, Field(exclude_if=lambda value: value is None, examples=[168])
    ] = None
    """Scores of attention are divided by the square root of this number. Without it, of the width of a head."""
    attn_logit_softcapping: Annotated[
        float | None, Field(gt=0, exclude_if=lambda value: value is None, examples=[50.0])
    ] = None
    """Soft cap of the scores of attention, as in Gemma 2: a score becomes the cap x tanh(score / cap). Scores are then
    computed by plain matrix products, since torch's kernels have no cap. Without it there is none."""
    final_logit_softcapping: Annotated[
        float | None, Field(gt=0, exclude_if=lambda value: value is None, examples=[30.0])
    ] = None
    """Soft cap of the logits, in the loss too: a logit becomes the cap x tanh(logit / cap). Without it, they stay as
    they are."""
    window_rope_theta: Annotated[
        float | None, Field(gt=0, exclude_if=lambda value: value is None, examples=[10_000.0])
    ] = None
    """Base of the rotary position embeddings of layers with a window. Needs `full_attention_every`. Without it,
    `rope_theta`."""
    scale_window_rope: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether `rope_scaling` applies to layers with a window too, where there are layers without one, as in Gemma 2 and
    gpt-oss."""
    fused_projections: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the model's files have queries, keys and values in one matrix, and gate and up in another, as those of
    Phi-3 and Phi-4. It changes no number."""
    attention_bias: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the projections of queries, keys and values have biases, as in Qwen2 and GLM-4 MoE."""
    attention_output_bias: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the output projection of attention has a bias, as in gpt-oss."""
    attention_sinks: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether each head has a learned score that takes part in the softmax and has no value, as in gpt-oss: a head can
    then attend to nothing."""
    rotary_fraction: Annotated[float, Field(gt=0, le=1, exclude_if=lambda value: value == 1.0, examples=[0.5])] = 1.0
    """Fraction of a head's elements that are rotated by position; the others stay as they are. The number of rotated
    elements, `head_dim` times this and rounded down, must be even. GLM-4 MoE as published has 0.5."""
    interleaved_rope: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Whether the elements of a head that are rotated together are neighbours, as in Llama 4. Without it, an element of
    the first half is rotated with one of the second half."""
    no_rope_every: Annotated[int | None, Field(ge=2, exclude_if=lambda value: value is None, examples=[4])] = None
    """Interval of layers without positions, as in Llama 4: with 4, queries and keys of layers 4, 8 and so on are not
    rotated. Without it, all layers have positions."""
    temperature_tuning: Annotated[TemperatureTuning | None, Field(exclude_if=lambda value: value is None)] = None
    """Factor of queries that grows with their position, in layers without rotary positions. Needs `no_rope_every`.
    Without it there is none."""
    sliding_window: Annotated[Dimension | None, Field(exclude_if=lambda value: value is None, examples=[4096])] = None
    """Number of tokens that a token attends to in each layer, itself included and those right before it, as in Mistral
    7B v0.1. Without it, it attends to all earlier ones."""
    full_attention_every: Annotated[int | None, Field(ge=2, exclude_if=lambda value: value is None, examples=[4])] = (
        None
    )
    """Interval of layers without the window, as in OLMo 3: with 4, layers 4, 8 and so on attend to all earlier tokens.
    `rope_scaling` then applies to these layers alone, unless `scale_window_rope` is set. Needs `sliding_window`, or
    `attention_chunk_size`, with which all layers have the same positions. Without it, all layers are alike."""
    attention_chunk_size: Annotated[
        Dimension | None, Field(exclude_if=lambda value: value is None, examples=[8192])
    ] = None
    """Number of tokens of a chunk, as in Llama 4: a document is cut into chunks from its start, in packed sequences
    too, and a token attends to itself and the earlier ones of its chunk. Layers that `full_attention_every` names
    attend to all earlier tokens. Not with `sliding_window`. Without it there are no chunks."""
    pad_token_id: Annotated[int | None, Field(ge=0, exclude_if=lambda value: value is None, examples=[0])] = None
    """Id of a padding token. Its embedding gets no gradient from the tokens of the input, as in Hugging Face's models
    with an entry of this name. Must be below the size of the vocabulary. Without it, all embeddings are trained."""
    mla: Annotated[MLAShape | None, Field(exclude_if=lambda value: value is None)] = None
    """Multi-head latent attention in place of grouped-query attention, as in DeepSeek-V2 and V3. Needs `num_kv_heads`
    equal to `num_heads`, and neither `head_dim` nor other features of queries and keys. Without it, attention is
    grouped-query attention."""
    moe: MoEShape | None = None
    """Mixture of experts in place of dense feed-forward networks. Without it all layers are dense."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.head_dim is None and self.hidden_size % self.num_heads:
            message = f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}"
            yield FieldConflict("hidden_size", message, ("num_heads", "head_dim"))
        if self.num_heads % self.num_kv_heads:
            message = f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            yield FieldConflict("num_kv_heads", message, ("num_heads",))
        if self.mla is None and self.head_size % 2:
            message = f"head size {self.head_size} (head_dim, or hidden_size / num_heads) must be even for RoPE"
            yield FieldConflict("head_dim", message, ("hidden_size", "num_heads"))
        if self.qk_norm and self.wide_qk_norm:
            message = "wide_qk_norm and qk_norm normalize the same; set one of them"
            yield FieldConflict("wide_qk_norm", message, ("qk_norm",))
        if self.offset_norms and self.wide_qk_norm:
            message = "offset_norms and wide_qk_norm are of different families; set one of them"
            yield FieldConflict("offset_norms", message, ("wide_qk_norm",))
        if self.window_rope_theta is not None and self.full_attention_every is None:
            message = "window_rope_theta needs full_attention_every; without it, set rope_theta"
            yield FieldConflict("window_rope_theta", message, ("full_attention_every",))
        if self.full_attention_every is not None and self.sliding_window is None and self.attention_chunk_size is None:
            message = "full_attention_every needs a sliding_window; leave it out, since all layers attend to all tokens"
            yield FieldConflict("full_attention_every", message, ("sliding_window", "attention_chunk_size"))
        if self.attention_chunk_size is not None and self.sliding_window is not None:
            message = "attention_chunk_size and sliding_window are of different families; set one of them"
            yield FieldConflict("attention_chunk_size", message, ("sliding_window",))
        if self.temperature_tuning is not None and self.no_rope_every is None:
            message = "temperature_tuning needs no_rope_every; leave it out, since all layers have rotary positions"
            yield FieldConflict("temperature_tuning", message, ("no_rope_every",))
        scaling = self.rope_scaling
        for name in ("short_factors", "long_factors") if scaling is not None else ():
            factors = getattr(scaling, name)
            if factors is not None and len(factors) != self.rotary_size // 2:
                message = f"{name} has {len(factors)} factors for {self.rotary_size // 2} pairs of rotated elements"
                yield FieldConflict(f"rope_scaling.{name}", f"{message}; give one for each")
        if self.rotary_fraction < 1.0 and (self.rotary_size % 2 or not self.rotary_size):
            message = (
                f"rotary_fraction {self.rotary_fraction} of the head size {self.head_size} rotates {self.rotary_size} "
                "elements, which must be an even number of at least 2; take another fraction"
            )
            yield FieldConflict("rotary_fraction", message, ("head_dim", "hidden_size", "num_heads"))
        if self.mla is not None:
            yield from self._mla_conflicts()
        elif self.rope_scaling is not None and self.rope_scaling.mscale_all_dim is not None:
            yield FieldConflict("rope_scaling.mscale_all_dim", "mscale_all_dim needs mla; leave it out", ("mla",))
        if self.moe is not None and self.moe.first_dense_layers >= self.num_layers:
            dense = self.moe.first_dense_layers
            field, layers = "moe.first_dense_layers", self.num_layers
            message = f"{field} {dense} leaves none of num_layers {layers} with experts; lower it or leave moe out"
            yield FieldConflict(field, message, ("num_layers",))
        elif self.moe is not None and not any(map(self.is_moe_layer, range(self.num_layers))):
            field, layers = "moe.layer_interval", self.num_layers
            message = f"{field} {self.moe.layer_interval} leaves none of num_layers {layers} with experts; lower it"
            yield FieldConflict(field, message, ("num_layers", "moe.first_dense_layers"))

    def _mla_conflicts(self) -> Iterator[FieldConflict]:
        if self.num_kv_heads != self.num_heads:
            message = f"mla has a key and a value for each head: num_kv_heads {self.num_kv_heads} must be num_heads"
            yield FieldConflict("num_kv_heads", f"{message} {self.num_heads}", ("num_heads", "mla"))
        for name in _NOT_WITH_MLA:
            if getattr(self, name) != ModelShape.model_fields[name].default:
                yield FieldConflict(name, f"{name} is not computed with mla; leave it out", ("mla",))

    @property
    def head_size(self) -> int:
        """Return the size of a query or key head."""
        return self.mla.head_size if self.mla is not None else self.head_dim or self.hidden_size // self.num_heads

    @property
    def value_size(self) -> int:
        """Return the size of a value head."""
        return self.mla.v_head_dim if self.mla is not None else self.head_size

    @property
    def rotary_size(self) -> int:
        """Return the number of a head's elements that are rotated by position: the first ones of the head, the last
        ones with `mla`."""
        return self.mla.qk_rope_head_dim if self.mla is not None else int(self.head_size * self.rotary_fraction)

    def window_of(self, layer: int) -> int | None:
        """Return the number of tokens that a token attends to in a layer; None: all earlier ones."""
        return None if _is_nth(layer, self.full_attention_every) else self.sliding_window

    def chunk_of(self, layer: int) -> int | None:
        """Return the size of the chunks of a layer; None: it has none."""
        return None if _is_nth(layer, self.full_attention_every) else self.attention_chunk_size

    def has_rope(self, layer: int) -> bool:
        """Return whether queries and keys of a layer are rotated by position."""
        return not _is_nth(layer, self.no_rope_every)

    def is_moe_layer(self, layer: int) -> bool:
        """Return whether a layer is a mixture of experts."""
        moe = self.moe
        return moe is not None and layer >= moe.first_dense_layers and _is_nth(layer, moe.layer_interval)

    def attention_matrices(self) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of the matrices of a layer's attention by name."""
        hidden, heads, mla = self.hidden_size, self.num_heads, self.mla
        query, output = (heads * self.head_size, hidden), (hidden, heads * self.value_size)
        if mla is None:
            width = self.num_kv_heads * self.head_size
            return {"query": query, "key": (width, hidden), "value": (width, hidden), "output": output}
        queries = {"query": query}
        if mla.q_lora_rank is not None:
            queries = {"query_a": (mla.q_lora_rank, hidden), "query_b": (query[0], mla.q_lora_rank)}
        return queries | {
            "key_value_a": (mla.kv_lora_rank + mla.qk_rope_head_dim, hidden),
            "key_value_b": (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
            "output": output,
        }

    def adapted_matrices(self, targets: Iterable[str]) -> set[str]:
        """Return the names of the matrices that low-rank adapters with these targets have: with `mla`, `query` is all
        matrices of queries, and `key` as `value` all those of keys and values."""
        chosen = set(targets)
        if self.mla is None:
            return chosen
        if "query" in chosen:
            chosen |= {"query_a", "query_b"}
        return chosen | {"key_value_a", "key_value_b"} if chosen & {"key", "value"} else chosen

    def attention_parameters(self) -> int:
        """Of one layer, norms and biases left out: what matrix products use."""
        return sum(rows * columns for rows, columns in self.attention_matrices().values())

    def compression_parameters(self) -> int:
        """Return those of `attention_parameters` that no head has for itself: what compresses with `mla`."""
        return sum(rows * columns for name, (rows, columns) in self.attention_matrices().items() if name.endswith("_a"))

    def compressed_width(self) -> int:
        """Return the width of the compressed queries, keys and values of a layer that are normalized."""
        return (self.mla.q_lora_rank or 0) + self.mla.kv_lora_rank if self.mla is not None else 0

    def bias_parameters(self) -> int:
        """Return the number of biases of one layer's queries, keys and values, and of its sinks, all by head."""
        biases = self.head_size * (self.num_heads + 2 * self.num_kv_heads) if self.attention_bias else 0
        return biases + self.num_heads * self.attention_sinks

    def norm_parameters(self) -> int:
        """Return the number of weights of one layer's norms, and of the bias of attention's output."""
        heads = self.num_heads + self.num_kv_heads if self.wide_qk_norm else 2 * self.qk_norm
        outer = ((4 if self.norm_position == "both" else 2) + self.attention_output_bias) * self.hidden_size
        return outer + self.head_size * heads + self.compressed_width()

    def expert_bias_parameters(self, layer: int) -> int:
        """Return the number of biases of one layer's experts, that of its router left out."""
        if self.moe is None or not self.moe.biases or not self.is_moe_layer(layer):
            return 0
        return self.moe.num_experts * (2 * self.moe.expert_size + self.hidden_size)

    def router_bias_parameters(self, layer: int) -> int:
        """Return the number of biases of one layer's router."""
        return self.moe.num_experts if self.moe is not None and self.moe.biases and self.is_moe_layer(layer) else 0

    def mlp_parameters(self, layer: int, *, active: bool = False) -> int:
        """Of one layer's feed-forward; `active`: only what one token passes through."""
        if self.moe is None or not self.is_moe_layer(layer):
            return 3 * self.hidden_size * self.intermediate_size
        experts = (self.moe.experts_per_token if active else self.moe.num_experts) + self.moe.shared_experts
        return 3 * self.hidden_size * self.moe.expert_size * experts + self.moe.num_experts * self.hidden_size

    def linear_parameters(self, layer: int) -> int:
        """Return the parameters of a layer's linear layers: of attention, a dense feed-forward network and shared
        experts, biases left out."""
        return self.attention_parameters() + 3 * self.hidden_size * self.linear_mlp_size(layer)

    def linear_mlp_size(self, layer: int) -> int:
        """Return the width of a layer's dense feed-forward network or of its shared experts, 0 without them."""
        if self.moe is None or not self.is_moe_layer(layer):
            return self.intermediate_size
        return self.moe.shared_experts * self.moe.expert_size

    def layer_parameters(self, layer: int) -> int:
        """Return the parameters of a layer."""
        vectors = self.norm_parameters() + self.bias_parameters()
        vectors += self.expert_bias_parameters(layer) + self.router_bias_parameters(layer)
        return self.attention_parameters() + self.mlp_parameters(layer) + vectors

    def num_parameters(self, vocab_size: int) -> int:
        """All trainable parameters, embeddings included (tied ones once)."""
        embeddings = vocab_size * self.hidden_size * (1 if self.tie_embeddings else 2)
        return sum(map(self.layer_parameters, range(self.num_layers))) + self.hidden_size + embeddings

    def adapter_parameters(self, rank: int, targets: Iterable[str]) -> int:
        """Of low-rank adapters beside these matrices of every layer; routed experts have none."""
        chosen, total = self.adapted_matrices(targets), 0
        for layer in range(self.num_layers):
            total += sum(rank * sum(sizes) for name, sizes in self.attention_matrices().items() if name in chosen)
            middle = self.linear_mlp_size(layer)
            if middle:
                total += rank * (self.hidden_size + middle) * len(chosen & {"gate", "up", "down"})
        return total

    def undivided_adapter_parameters(self, rank: int, targets: Iterable[str]) -> int:
        """Of `adapter_parameters`, those that every tensor rank has: of the two matrices of an adapter, the one on the
        side that is not divided, or both beside what compresses with `mla`."""
        chosen, total = self.adapted_matrices(targets), 0
        for name, (rows, columns) in self.attention_matrices().items():
            if name in chosen:
                whole = rows + columns if name.endswith("_a") else rows if name == "output" else columns
                total += self.num_layers * rank * whole
        with_feed_forward = sum(self.linear_mlp_size(layer) > 0 for layer in range(self.num_layers))
        return total + with_feed_forward * rank * self.hidden_size * len(chosen & {"gate", "up", "down"})

    def flops_per_token(
        self, vocab_size: int, sequence_length: int, *, causal: bool, trained_adapters: int | None = None,
        forward_passes: int = 0,
    ) -> int:  # fmt: skip
        """Return the training FLOPs (forward and backward) of one token.

        6 per matmul parameter that the token passes through plus attention scores, `12 * layers * heads * head size *
        sequence` as PaLM (Chowdhery et al. 2022, appendix B) counts them, where the head size is the mean of those of
        keys and values; `causal` halves the attention term, since a causal kernel computes half of the square, and
        with a sliding window or chunks counts only the part of the square that is in the window or the chunks. The
        embedding look-up is no matmul.

        `trained_adapters`: the number of adapter parameters, if only they are trained (LoRA). A frozen parameter has no
        gradient of its own, so it counts 4: forward, and the gradient of its input. Adapters count 6.

        `forward_passes`: further passes of each token without a backward pass, of this model or of one of its size,
        such as the reference of preference training: a third of the work of training all parameters each.
        """
        matmul = sum(
            self.attention_parameters() + self.mlp_parameters(layer, active=True) for layer in range(self.num_layers)
        )
        matmul += vocab_size * self.hidden_size  # the output head
        scores = (6 + 2 * forward_passes) * self.num_heads * (self.head_size + self.value_size) * sequence_length
        products = 6 * matmul if trained_adapters is None else 4 * matmul + 6 * trained_adapters
        products += 2 * matmul * forward_passes
        if not causal:
            return products + self.num_layers * scores
        pairs = sum(self._twice_seen(layer, sequence_length) for layer in range(self.num_layers))
        return products + scores * pairs // (2 * sequence_length**2)

    def _twice_seen(self, layer: int, length: int) -> int:
        """Return twice the number of pairs of a query and a key that it attends to, in a layer and a sequence."""
        chunk = min(self.chunk_of(layer) or length, length)
        window = min(self.window_of(layer) or length, length)
        return length // chunk * chunk**2 + (length % chunk) ** 2 - (length - window) ** 2


def _is_nth(layer: int, interval: int | None) -> bool:
    """Return whether a layer, counted from 0, ends an interval of layers; False without an interval."""
    return interval is not None and (layer + 1) % interval == 0


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
