"""Map parameter names of `models.decoder.Decoder` to the tensor names of a model's Hugging Face layout.

The layout follows from the model's shape (`contract.hugging_face.layout_of`). `Decoder` stacks the experts of a layer
in one tensor; the layouts have one tensor for each expert, but for gpt_oss and llama4_text.
"""

from dataclasses import dataclass

from trainer.contract.hugging_face import layout_of
from trainer.contract.models import ModelShape

_OUTER = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "norm.offset": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_ATTENTION = {
    "attention_norm.weight": "input_layernorm.weight",
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.query.bias": "self_attn.q_proj.bias",
    "attention.key.bias": "self_attn.k_proj.bias",
    "attention.value.bias": "self_attn.v_proj.bias",
    "attention.query_a.weight": "self_attn.q_a_proj.weight",
    "attention.query_a_norm.weight": "self_attn.q_a_layernorm.weight",
    "attention.query_b.weight": "self_attn.q_b_proj.weight",
    "attention.key_value_a.weight": "self_attn.kv_a_proj_with_mqa.weight",
    "attention.key_value_a_norm.weight": "self_attn.kv_a_layernorm.weight",
    "attention.key_value_b.weight": "self_attn.kv_b_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "attention.output_bias": "self_attn.o_proj.bias",
    "attention.sinks": "self_attn.sinks",
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
}
_OLMO2 = {
    "attention_output_norm.weight": "post_attention_layernorm.weight",
    "mlp_output_norm.weight": "post_feedforward_layernorm.weight",
    "attention.query_wide_norm.weight": "self_attn.q_norm.weight",
    "attention.key_wide_norm.weight": "self_attn.k_norm.weight",
}
_GEMMA = {
    "attention_norm.offset": "input_layernorm.weight",
    "attention_output_norm.offset": "post_attention_layernorm.weight",
    "mlp_norm.offset": "pre_feedforward_layernorm.weight",
    "mlp_output_norm.offset": "post_feedforward_layernorm.weight",
    "attention.query_norm.offset": "self_attn.q_norm.weight",
    "attention.key_norm.offset": "self_attn.k_norm.weight",
}
_FUSED = {
    "attention.query.weight": "self_attn.qkv_proj.weight",
    "attention.key.weight": "self_attn.qkv_proj.weight",
    "attention.value.weight": "self_attn.qkv_proj.weight",
    "mlp.gate.weight": "mlp.gate_up_proj.weight",
    "mlp.up.weight": "mlp.gate_up_proj.weight",
}
_DENSE = {
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
_SPARSE = {  # {} is the number of an expert
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.balance": "mlp.gate.e_score_correction_bias",
    "mlp.experts.gate": "mlp.experts.{}.gate_proj.weight",
    "mlp.experts.up": "mlp.experts.{}.up_proj.weight",
    "mlp.experts.down": "mlp.experts.{}.down_proj.weight",
    "mlp.shared.gate.weight": "mlp.shared_experts.gate_proj.weight",
    "mlp.shared.up.weight": "mlp.shared_experts.up_proj.weight",
    "mlp.shared.down.weight": "mlp.shared_experts.down_proj.weight",
}
_MIXTRAL = {
    "mlp.router.weight": "block_sparse_moe.gate.weight",
    "mlp.experts.gate": "block_sparse_moe.experts.{}.w1.weight",
    "mlp.experts.up": "block_sparse_moe.experts.{}.w3.weight",
    "mlp.experts.down": "block_sparse_moe.experts.{}.w2.weight",
}
_GPT_OSS = {
    "mlp.router.weight": "mlp.router.weight",
    "mlp.router.bias": "mlp.router.bias",
    "mlp.experts.gate": "mlp.experts.gate_up_proj",
    "mlp.experts.up": "mlp.experts.gate_up_proj",
    "mlp.experts.down": "mlp.experts.down_proj",
    "mlp.experts.gate_bias": "mlp.experts.gate_up_proj_bias",
    "mlp.experts.up_bias": "mlp.experts.gate_up_proj_bias",
    "mlp.experts.down_bias": "mlp.experts.down_proj_bias",
}
_LLAMA4 = {
    "mlp.gate.weight": "feed_forward.gate_proj.weight",
    "mlp.up.weight": "feed_forward.up_proj.weight",
    "mlp.down.weight": "feed_forward.down_proj.weight",
    "mlp.router.weight": "feed_forward.router.weight",
    "mlp.experts.gate": "feed_forward.experts.gate_up_proj",
    "mlp.experts.up": "feed_forward.experts.gate_up_proj",
    "mlp.experts.down": "feed_forward.experts.down_proj",
    "mlp.shared.gate.weight": "feed_forward.shared_expert.gate_proj.weight",
    "mlp.shared.up.weight": "feed_forward.shared_expert.up_proj.weight",
    "mlp.shared.down.weight": "feed_forward.shared_expert.down_proj.weight",
}
_STACKING = ("gpt_oss", "llama4_text")
"""Layouts with the experts of a layer in one tensor."""


@dataclass(frozen=True)
class StackedRows:
    """The rows of a stack of experts in a tensor of the layout with transposed matrices: it is part `place` of
    `parts`. The rows of the parts are `in_turns` (gate, up, gate, and so on), or those of a part follow each other."""

    place: int
    parts: int
    in_turns: bool


def hugging_face_names(name: str, shape: ModelShape) -> list[str]:
    """Return the layout's tensor names of a parameter: `blocks.3.mlp.up.weight` ->
    [`model.layers.3.mlp.up_proj.weight`].

    A stack of experts has one name for each expert, in their order, or where the layout stacks them one name
    (`stacked_rows`). The list is empty for the bias that balances experts in layouts without a tensor for it, those
    with softmax scoring and llama4_text: `layout_of` refuses shapes that train it.
    """
    if name in _OUTER:
        return [_OUTER[name]]
    layout = layout_of(shape)
    _, layer, inner = name.split(".", 2)
    sparse = _MIXTRAL if layout == "mixtral" else _SPARSE
    if inner == "mlp.balance" and (shape.moe is None or shape.moe.scoring != "sigmoid" or layout == "llama4_text"):
        return []
    own = {
        "olmo2": _OLMO2,
        "olmo3": _OLMO2,
        "phi3": _FUSED,
        "gemma2": _GEMMA,
        "gemma3_text": _GEMMA,
        "gpt_oss": _GPT_OSS,
        "llama4_text": _LLAMA4,
    }
    of_layout = own.get(layout, {})
    pattern = f"model.layers.{layer}.{(_ATTENTION | _DENSE | sparse | of_layout)[inner]}"
    if not is_expert_stack(name) or layout in _STACKING:
        return [pattern]
    assert shape.moe is not None
    return [pattern.format(number) for number in range(shape.moe.num_experts)]


def fused_rows(name: str, shape: ModelShape) -> tuple[int, int] | None:
    """Return (first row, rows of the whole) of a parameter that is a part of a fused tensor of the layout; None for
    others. The parts follow each other in the order of the model's parameters."""
    inner = name.split(".", 2)[-1]
    if not shape.fused_projections or inner not in _FUSED:
        return None
    key = shape.num_kv_heads * shape.head_size
    sizes = {"query": shape.num_heads * shape.head_size, "key": key, "value": key}
    if inner.startswith("mlp."):
        sizes = dict.fromkeys(("gate", "up"), shape.intermediate_size)
    parts = list(sizes)
    before = parts[: parts.index(inner.split(".")[1])]
    return sum(sizes[part] for part in before), sum(sizes.values())


def stacked_rows(name: str, shape: ModelShape) -> StackedRows | None:
    """Return where a stack of experts is in a tensor of the layout; None for others, and where each expert has its
    own."""
    layout = layout_of(shape) if is_expert_stack(name) else None
    if layout not in _STACKING:
        return None
    part = name.rpartition(".")[2].removesuffix("_bias")
    place, parts = (0, 1) if part == "down" else (("gate", "up").index(part), 2)
    return StackedRows(place, parts, in_turns=layout == "gpt_oss")


def is_expert_stack(name: str) -> bool:
    """Return whether the parameter stacks one matrix for each expert along its first dimension."""
    return ".experts." in name
