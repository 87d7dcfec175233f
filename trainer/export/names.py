"""Our parameter names and Hugging Face's Llama names, both ways, and the configuration that goes with them."""

from typing import Any

from trainer.contract.models import ModelShape

_OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_INNER = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}


def hugging_face_name(name: str) -> str:
    """`blocks.3.mlp.up.weight` -> `model.layers.3.mlp.up_proj.weight`."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, inner = name.split(".", 2)
    return f"model.layers.{layer}.{_INNER[inner]}"


def our_name(name: str) -> str:
    for ours, theirs in _OUTER.items():
        if name == theirs:
            return ours
    _, _, layer, inner = name.split(".", 3)
    return f"blocks.{layer}." + next(ours for ours, theirs in _INNER.items() if theirs == inner)


def hugging_face_config(
    shape: ModelShape, vocab_size: int, sequence_length: int, dtype: str, end_of_text: int
) -> dict[str, Any]:
    """`config.json` of a LlamaForCausalLM. `dtype` is a torch name without the prefix."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": sequence_length,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": shape.tie_embeddings,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "use_cache": True,
        "torch_dtype": dtype,
    }


def shape_of_config(config: dict[str, Any]) -> ModelShape:
    """The inverse of `hugging_face_config`, for a model that this trainer exported."""
    return ModelShape(
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        intermediate_size=config["intermediate_size"],
        rope_theta=config["rope_theta"],
        norm_epsilon=config["rms_norm_eps"],
        tie_embeddings=config["tie_word_embeddings"],
    )
