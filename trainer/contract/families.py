"""The families of models that are read from and written to Hugging Face's layout, and what each can express.

A family is a model type of `transformers`. It chooses among the features of the decoder, which are fields of
`ModelShape`; the decoder knows no families. `docs/reference/models.md` has
the list as a table.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.contract.models import ModelShape

Layout = Literal[
    "llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe", "mixtral", "olmo2", "olmo3", "phi3", "gemma2",
    "gemma3_text", "gpt_oss", "llama4_text", "deepseek_v2", "deepseek_v3",
]  # fmt: skip
FEATURES = (
    "qk_norm",
    "attention_bias",
    "attention_output_bias",
    "attention_sinks",
    "rotary_fraction",
    "sliding_window",
    "wide_qk_norm",
    "norm_position",
    "offset_norms",
    "activation",
    "scale_embeddings",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "window_rope_theta",
    "scale_window_rope",
    "fused_projections",
    "full_attention_every",
    "attention_chunk_size",
    "interleaved_rope",
    "no_rope_every",
    "temperature_tuning",
    "l2_qk_norm",
    "mla",
)
"""Fields of a shape that not every family can express."""


@dataclass(frozen=True)
class Family:
    """A model type. `title`: for people. `experts`: the scoring of its mixture of experts, None for dense models.

    `always`: values of features that all of its models have. `entries`: the entry of `config.json` that has the value
    of a feature. All other features have their defaults. `defaults`: what a missing entry of `config.json` means.
    `restrictions`: which models of it are refused. `text_part_of`: the model type of models for images and text that
    have a text part of this family; `part_defaults`: what a missing entry of that part means besides.
    """

    model_type: Layout
    architecture: str
    title: str
    experts: Literal["softmax", "sigmoid"] | None = None
    always: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    restrictions: str = ""
    text_part_of: str = ""
    part_defaults: dict[str, Any] = field(default_factory=dict)

    def required(self, feature: str) -> object:
        """Return the only value of a feature that the family can express. Not for one with an entry."""
        return self.always.get(feature, ModelShape.model_fields[feature].default)

    def mismatches(self, shape: ModelShape) -> list[str]:
        """Return the features of the shape that the family cannot express."""
        return [name for name in FEATURES if name not in self.entries and getattr(shape, name) != self.required(name)]


FAMILIES = (
    Family(
        "llama", "LlamaForCausalLM", "Llama 2, Llama 3, and others of model type llama",
        defaults={"rms_norm_eps": 1e-6}, restrictions="no biases",
    ),
    Family(
        "mistral", "MistralForCausalLM", "Mistral",
        entries={"sliding_window": "sliding_window"},
        defaults={"rms_norm_eps": 1e-6, "num_key_value_heads": 8, "sliding_window": 4096},
        restrictions="without a window, exported as model type llama",
    ),
    Family(
        "qwen2", "Qwen2ForCausalLM", "Qwen2, Qwen2.5",
        always={"attention_bias": True}, defaults={"rms_norm_eps": 1e-6, "num_key_value_heads": 32},
        restrictions="no sliding window (`use_sliding_window`)",
    ),
    Family(
        "qwen3", "Qwen3ForCausalLM", "Qwen3",
        always={"qk_norm": True}, defaults={"rms_norm_eps": 1e-6, "num_key_value_heads": 32, "head_dim": 128},
        restrictions="no biases, no sliding window (`use_sliding_window`)",
    ),
    Family(
        "olmo2", "Olmo2ForCausalLM", "OLMo 2",
        always={"wide_qk_norm": True, "norm_position": "after"}, defaults={"rms_norm_eps": 1e-5, "pad_token_id": 1},
        restrictions="no biases",
    ),
    Family(
        "olmo3", "Olmo3ForCausalLM", "OLMo 3",
        always={"wide_qk_norm": True, "norm_position": "after"},
        entries={"sliding_window": "sliding_window", "full_attention_every": "layer_types"},
        defaults={
            "rms_norm_eps": 1e-5, "pad_token_id": 1, "sliding_window": 4096, "layer_types": None, "rope_theta": 5e5,
            "sliding_window_pattern": 4,
        },
        restrictions="no biases; without a window, exported as model type olmo2",
    ),
    Family(
        "gemma2", "Gemma2ForCausalLM", "Gemma 2",
        always={
            "norm_position": "both", "offset_norms": True, "activation": "gelu_tanh", "scale_embeddings": True,
            "scale_window_rope": True,
        },
        entries={
            "sliding_window": "sliding_window", "full_attention_every": "layer_types",
            "query_pre_attn_scalar": "query_pre_attn_scalar", "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        defaults={
            "rms_norm_eps": 1e-6, "pad_token_id": 0, "sliding_window": 4096, "layer_types": None, "head_dim": 256,
            "sliding_window_pattern": 2, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
            "tie_word_embeddings": True, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        },
        restrictions="no biases",
    ),
    Family(
        "gemma3_text", "Gemma3ForCausalLM", "Gemma 3 (270M, 1B; the text part of 4B, 12B and 27B)",
        always={
            "qk_norm": True, "norm_position": "both", "offset_norms": True, "activation": "gelu_tanh",
            "scale_embeddings": True,
        },
        entries={
            "sliding_window": "sliding_window", "full_attention_every": "layer_types",
            "query_pre_attn_scalar": "query_pre_attn_scalar", "window_rope_theta": "rope_local_base_freq",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        defaults={
            "rms_norm_eps": 1e-6, "pad_token_id": 0, "sliding_window": 4096, "layer_types": None, "head_dim": 256,
            "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256, "tie_word_embeddings": True, "final_logit_softcapping": None,
        },
        restrictions="no biases, no soft caps of scores; of models for images and text (`gemma3`), the text part is "
        "read, trained and exported as a model of its own, without `lora.export: adapter`",
        text_part_of="gemma3", part_defaults={"vocab_size": 262_208, "num_attention_heads": 8},
    ),
    Family(
        "phi3", "Phi3ForCausalLM", "Phi-3, Phi-4",
        always={"fused_projections": True},
        entries={"sliding_window": "sliding_window", "rotary_fraction": "partial_rotary_factor"},
        defaults={
            "rms_norm_eps": 1e-5, "sliding_window": None, "partial_rotary_factor": 1.0, "pad_token_id": 32000,
        },
        restrictions="positions scaled by `longrope` alone, which no other family has; no adapters without their model "
        "(`lora.export: adapter`)",
    ),
    Family(
        "qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3 mixtures of experts", experts="softmax",
        always={"qk_norm": True},
        defaults={
            "rms_norm_eps": 1e-6, "num_key_value_heads": 4, "norm_topk_prob": False, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
        },
        restrictions="no biases, no sliding window; only the first layers may be dense",
    ),
    Family(
        "mixtral", "MixtralForCausalLM", "Mixtral", experts="softmax",
        entries={"sliding_window": "sliding_window"},
        defaults={
            "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
            "rope_theta": 1e6, "sliding_window": None,
        },
    ),
    Family(
        "gpt_oss", "GptOssForCausalLM", "gpt-oss", experts="softmax",
        always={
            "attention_bias": True, "attention_output_bias": True, "attention_sinks": True, "scale_window_rope": True,
        },
        entries={"sliding_window": "sliding_window", "full_attention_every": "layer_types"},
        defaults={
            "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
            "num_experts_per_tok": 4, "sliding_window": 128, "layer_types": None, "sliding_window_pattern": 2,
            "rope_theta": 150_000.0, "swiglu_limit": 7.0, "attention_bias": True,
        },
        restrictions="no projections without biases; weights in MXFP4 are read, and exported without it",
    ),
    Family(
        "llama4_text", "Llama4ForCausalLM", "Llama 4 (the text part of Scout and Maverick)", experts="sigmoid",
        always={"interleaved_rope": True},
        entries={
            "attention_chunk_size": "attention_chunk_size", "full_attention_every": "layer_types",
            "no_rope_every": "no_rope_layers", "temperature_tuning": "attn_temperature_tuning",
            "l2_qk_norm": "use_qk_norm",
        },
        defaults={
            "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "num_local_experts": 16,
            "num_experts_per_tok": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16_384, "moe_layers": None,
            "interleave_moe_layer_step": 1, "rope_theta": 5e5, "use_qk_norm": True, "no_rope_layers": None,
            "no_rope_layer_interval": 4, "layer_types": None, "attention_chunk_size": 8192,
            "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1,
        },
        restrictions="no biases, no models without experts, no balancing of experts; full attention, layers without "
        "positions and layers with experts in every n-th layer only; of models for images and text (`llama4`), the "
        "text part is read, trained and exported as a model of its own, without `lora.export: adapter`",
        text_part_of="llama4", part_defaults={"vocab_size": 202_048, "num_attention_heads": 40},
    ),
    Family(
        "glm4_moe", "Glm4MoeForCausalLM", "GLM-4.5, GLM-4.6 and other GLM-4 MoE", experts="sigmoid",
        entries={
            "qk_norm": "use_qk_norm", "attention_bias": "attention_bias", "rotary_fraction": "partial_rotary_factor",
        },
        defaults={
            "rms_norm_eps": 1e-5, "num_key_value_heads": 8, "partial_rotary_factor": 0.5, "norm_topk_prob": True,
            "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
            "use_qk_norm": False, "attention_bias": False,
        },
        restrictions="layers that predict further tokens are not read, trained or exported",
    ),
    Family(
        "deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek-V3, R1, and others of model type deepseek_v3",
        experts="sigmoid", entries={"mla": "kv_lora_rank"},
        defaults={
            "rms_norm_eps": 1e-6, "norm_topk_prob": True, "n_routed_experts": 256, "n_shared_experts": 1,
            "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
            "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc",
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        restrictions="no biases, only rotary elements in pairs of neighbours (`rope_interleave`), no "
        "`lora.quantization`; layers that predict further tokens are not read, trained or exported",
    ),
    Family(
        "deepseek_v2", "DeepseekV2ForCausalLM", "DeepSeek-V2, V2-Lite", experts="softmax",
        entries={"mla": "kv_lora_rank"},
        defaults={
            "rms_norm_eps": 1e-6, "norm_topk_prob": False, "n_routed_experts": 64, "n_shared_experts": 2,
            "num_experts_per_tok": None, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
            "routed_scaling_factor": 1.0, "n_group": None, "topk_group": None, "topk_method": "greedy",
            "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
        restrictions="no biases, no normalized weights of experts (`norm_topk_prob`), no `lora.quantization`",
    ),
)  # fmt: skip
BY_TYPE: dict[str, Family] = {family.model_type: family for family in FAMILIES}
BY_WHOLE: dict[str, Family] = {family.text_part_of: family for family in FAMILIES if family.text_part_of}
"""The family of the text part, by the model type of models for images and text."""


def family_of(shape: ModelShape) -> Family:
    """Return the family that can express the features of a shape. Raises ValueError that names a feature that none
    can."""
    scoring = shape.moe.scoring if shape.moe is not None else None
    candidates = [family for family in FAMILIES if family.experts == scoring]
    nearest = min(candidates, key=lambda family: len(family.mismatches(shape)))
    for name in nearest.mismatches(shape):
        raise ValueError(
            f"model.shape.{name} {getattr(shape, name)} cannot be exported to Hugging Face: {nearest.model_type}, the "
            f"nearest of its layouts, knows only {nearest.required(name)}; change it"
        )
    return nearest
