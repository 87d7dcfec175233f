"""A model's `config.json` in Hugging Face's terms, both ways. What this decoder cannot compute is refused by name.

A layout is a model type of `transformers`.
"""

import hashlib
from collections.abc import Mapping
from math import log
from typing import Any

from pydantic import ValidationError

from trainer.contract.families import BY_TYPE, BY_WHOLE, Layout, family_of
from trainer.contract.layer_types import (
    LOCAL_BASE,
    chunked_layers_config,
    chunks_of_config,
    expert_interval,
    layer_types_config,
    refuse_windows,
    refused,
    rope_of_full_attention,
    windows_of_config,
)
from trainer.contract.models import MLAShape, ModelShape, MoEShape
from trainer.contract.positions import RopeScaling

CONFIG_NAME, TOKENIZER_NAME = "config.json", "tokenizer.json"
TOKENIZER_SETTINGS_NAME, TEMPLATE_NAME = "tokenizer_config.json", "chat_template.jinja"
DESCRIBING_FILES = (CONFIG_NAME, TOKENIZER_NAME, TOKENIZER_SETTINGS_NAME, TEMPLATE_NAME)

_ONLY: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "decoder_sparse_step": 1,
    "moe_layer_freq": 1,
    "rope_interleave": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": False,
    "swiglu_alpha": 1.702,
}
"""Entries that would change what is computed, and the only value for which they do not."""


_OUTER_ENTRIES = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
"""Entries that a model for images and text has beside the configuration of its text part."""
QUANTIZATION_BLOCK = 128
"""Rows and columns of a matrix in fp8 that have a scale together."""
_SCALING_ENTRIES: dict[str, dict[str, str]] = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_frequency_factor": "low_freq_factor",
        "high_frequency_factor": "high_freq_factor",
        "original_length": "original_max_position_embeddings",
    },
    "yarn": {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
        "mscale": "mscale",
        "mscale_all_dim": "mscale_all_dim",
    },
    "longrope": {
        "short_factors": "short_factor",
        "long_factors": "long_factor",
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "attention_factor": "attention_factor",
    },
}
"""The entry for each field of a scaling, by its kind."""
_REQUIRED_SCALING = {
    "linear": ("factor",),
    "llama3": tuple(_SCALING_ENTRIES["llama3"]),
    "yarn": ("factor", "original_length"),
    "longrope": ("short_factors", "long_factors", "original_length"),
}


def layout_of(shape: ModelShape) -> Layout:
    """Return the layout that can express all fields of a shape. Raises ValueError that names a field without a
    layout."""
    family, moe = family_of(shape), shape.moe
    name = family.model_type
    scales_full_alone = "full_attention_every" in family.entries and not shape.scale_window_rope
    if scales_full_alone and shape.rope_scaling is not None and _has_windows_only(shape):
        raise ValueError(
            f"model.shape.rope_scaling {shape.rope_scaling.kind} cannot be exported to Hugging Face: {name} scales the "
            "positions of layers with full attention alone; set full_attention_every, or leave rope_scaling out"
        )
    kind = shape.rope_scaling.kind if shape.rope_scaling is not None else "longrope"
    if (name == "phi3") != (kind == "longrope") and shape.rope_scaling is not None:
        knows = "only longrope" if name == "phi3" else "no longrope"
        raise ValueError(
            f"model.shape.rope_scaling {kind} cannot be exported to Hugging Face: {name} knows {knows}; leave it out"
        )
    if moe is None:
        return name
    is_gpt_oss = name == "gpt_oss"
    if moe.biases != is_gpt_oss:
        raise _no_layout(
            "biases", moe.biases, f"{name} knows only {is_gpt_oss}; gpt-oss has them, with attention_sinks"
        )
    if (moe.swiglu_limit is not None) != is_gpt_oss:
        needs = "needs one, such as 7.0" if is_gpt_oss else "has none; leave it out"
        raise _no_layout("swiglu_limit", moe.swiglu_limit, f"{name} {needs}")
    if name == "llama4_text":
        _check_experts(moe, name, _LLAMA4_EXPERTS, "scoring `sigmoid` without weigh_inputs has a layout")
        return name
    _check_experts(moe, name, {"weigh_inputs": False, "layer_interval": 1}, "Llama 4 has it, with interleaved_rope")
    if moe.shared_experts == 0 and (moe.scoring == "sigmoid" or shape.mla is not None):
        raise _no_layout("shared_experts", 0, f"{name} needs at least 1")
    if moe.scoring == "sigmoid":
        return name
    limits: dict[str, object] = {"shared_experts": 0, "balance_rate": 0.0, "weight_scale": 1.0, "num_groups": 1}
    if name == "deepseek_v2":
        limits = {"balance_rate": 0.0, "normalise_weights": False}
    _check_experts(moe, name, limits, "scoring `sigmoid` has a layout")
    if name in ("mixtral", "gpt_oss"):
        _check_experts(moe, name, {"first_dense_layers": 0, "normalise_weights": True}, "with qk_norm there is one")
    return name


_LLAMA4_EXPERTS: dict[str, object] = {
    "weigh_inputs": True, "shared_experts": 1, "first_dense_layers": 0, "normalise_weights": False, "weight_scale": 1.0,
    "balance_rate": 0.0, "num_groups": 1,
}  # fmt: skip


def _check_experts(moe: MoEShape, layout: Layout, limits: dict[str, object], remedy: str) -> None:
    """Raise ValueError for a field with another value than the only one that a layout knows."""
    for field, only in limits.items():
        if getattr(moe, field) != only:
            raise _no_layout(field, getattr(moe, field), f"{layout} knows only {only}; {remedy}")


def hugging_face_config(
    shape: ModelShape, vocab_size: int, sequence_length: int, dtype: str, end_of_text: int | None
) -> dict[str, Any]:
    """Return the config of a model in Hugging Face's layout. `dtype` is a torch name without the prefix; `end_of_text`
    is None where the tokenizer of a base model names no such token. Raises ValueError where no layout fits."""
    layout = layout_of(shape)
    family = BY_TYPE[layout]
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": layout,
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
        "rope_scaling": _scaling_config(shape.rope_scaling),
        "hidden_act": "silu",
        "attention_bias": shape.attention_bias,
        "attention_dropout": 0.0,
        "tie_word_embeddings": shape.tie_embeddings,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "pad_token_id": shape.pad_token_id,
        "use_cache": True,
        "torch_dtype": dtype,
    }
    if layout == "llama":
        config["mlp_bias"] = False
    if shape.moe is not None:
        config |= _moe_config(shape.moe, layout)
    config |= {entry: getattr(shape, feature) for feature, entry in family.entries.items()}
    if layout == "llama4_text":
        config |= chunked_layers_config(shape, sequence_length)
    elif "full_attention_every" in family.entries:
        config |= layer_types_config(shape, sequence_length, config["rope_scaling"])
    if shape.mla is not None:
        del config["head_dim"]
        config |= shape.mla.model_dump()
    if shape.rope_scaling is not None and shape.rope_scaling.kind == "longrope":
        config |= _longrope_config(shape.rope_scaling)
    if shape.activation == "gelu_tanh":
        del config["hidden_act"]
        config["hidden_activation"] = "gelu_pytorch_tanh"
    if "query_pre_attn_scalar" in family.entries:
        config["query_pre_attn_scalar"] = shape.query_pre_attn_scalar or shape.head_size
    if "window_rope_theta" in family.entries:
        config[LOCAL_BASE] = shape.window_rope_theta or shape.rope_theta
    return config


def is_of_images_too(config: dict[str, Any]) -> bool:
    """Return whether a configuration is of a model for images and text with a text part of a known family."""
    kind = config.get("model_type")
    return isinstance(config.get("text_config"), dict) and isinstance(kind, str) and kind in BY_WHOLE


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of the text part of a model for images and text; any other one unchanged."""
    if not is_of_images_too(config):
        return config
    family = BY_WHOLE[config["model_type"]]
    outer = {entry: config[entry] for entry in _OUTER_ENTRIES if config.get(entry) is not None}
    return {**family.part_defaults, **config["text_config"], **outer, "model_type": family.model_type}


def shape_of_config(config: dict[str, Any]) -> ModelShape:
    """Return the shape of a configuration. Raises ValueError that names the entry this decoder does not support."""
    try:
        return _shape(config)
    except KeyError as error:
        raise ValueError(f"{CONFIG_NAME}: {error.args[0]} is missing: take another model") from error
    except ValidationError as error:
        detail = error.errors()[0]
        raise ValueError(f"{CONFIG_NAME}: {detail['msg']} ({detail['input']!r}): take another model") from error
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"{CONFIG_NAME} has an entry of another type than its layout: {error}: take another model"
        ) from error


def _shape(config: dict[str, Any]) -> ModelShape:
    kind = config.get("model_type")
    family = BY_TYPE.get(kind) if isinstance(kind, str) else None
    if family is None:
        with_parts = "".join(f", or {each} with a text_config" for each in BY_WHOLE)
        raise refused("model_type", kind, f"it must be one of {', '.join(BY_TYPE)}{with_parts}")
    config = {"num_key_value_heads": config.get("num_attention_heads"), **family.defaults, **config}
    for entry in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        found = config.get(entry)
        if not isinstance(found, int) or found < 1:
            raise refused(entry, found, "it must be a whole number of at least 1")
    if "num_local_experts" in config:  # newer releases write all types' number of experts so
        config["num_experts"] = config["n_routed_experts"] = config["num_local_experts"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise refused("rope_parameters", rope, "it must be an object")
    if "full_attention" in rope:
        rope = rope_of_full_attention(rope, config)
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope["partial_rotary_factor"]
    features = family.always | {feature: config[entry] for feature, entry in family.entries.items()}
    if kind == "gpt_oss" and _is_mxfp4(config.get("quantization_config")):
        del config["quantization_config"]
    known = _ONLY | ({"hidden_act": _ONLY["hidden_activation"]} if "activation" in family.always else {})
    read = {*family.entries, *family.entries.values(), *(family.always.keys() - family.defaults.keys())}
    for entry, usual in known.items():
        only = family.always.get(entry, usual)
        if entry not in read and config.get(entry, only) not in (only, None):
            raise refused(entry, config[entry], f"only {only!r} is computed")
    _refuse_unknown_quantization(config.get("quantization_config"))
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    if kind == "llama4_text":
        features |= chunks_of_config(config)
    elif "full_attention_every" in family.entries:
        features |= windows_of_config(config)
        is_windowed = features["sliding_window"] is not None and features["full_attention_every"] is None
        if is_windowed and not features.get("scale_window_rope"):
            theta, rope = features.get("window_rope_theta") or theta, {}  # no layer has the others' positions
    else:
        refuse_windows(config)
    if features.get("window_rope_theta") == theta or features.get("full_attention_every") is None:
        features.pop("window_rope_theta", None)
    moe, head_dim = _moe_shape(config), config.get("head_dim")
    if "mla" in family.entries:
        features["mla"], head_dim = MLAShape(**{name: config[name] for name in MLAShape.model_fields}), None
        if config["num_key_value_heads"] is None:
            config["num_key_value_heads"] = config["num_attention_heads"]
    dense_size = config["intermediate_size_mlp" if kind == "llama4_text" else "intermediate_size"]
    return ModelShape(
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        intermediate_size=dense_size,
        head_dim=None if head_dim == config["hidden_size"] / config["num_attention_heads"] else head_dim,
        rope_theta=theta,
        rope_scaling=_scaling(rope, config),
        norm_epsilon=config["rms_norm_eps"],
        tie_embeddings=config.get("tie_word_embeddings", False),
        pad_token_id=_pad_token_id(config),
        moe=moe,
        **features,
    )


def _is_mxfp4(quantization: object) -> bool:
    return isinstance(quantization, dict) and quantization.get("quant_method") == "mxfp4"


def _pad_token_id(config: dict[str, Any]) -> int | None:
    """Return the row of the embeddings that `pad_token_id` names; a negative one counts from the end, as in torch. None
    where the vocabulary has no such row: tokenizers with a padding token of their own often leave one."""
    found, size = config.get("pad_token_id"), config["vocab_size"]
    return found % size if isinstance(found, int) and -size <= found < size else None


def tokenizer_digest(config: dict[str, Any], contents: Mapping[str, bytes]) -> str:
    """Hex digest of all that decides how text becomes tokens: equal for equal tokens. `contents`: of those of
    DESCRIBING_FILES that there are."""
    digest = hashlib.sha256(str(end_of_text_id(config)).encode())
    for name in DESCRIBING_FILES[1:]:
        content = contents.get(name, b"")
        digest.update(f"/{name}/{len(content)}/".encode() + content)
    return digest.hexdigest()


def end_of_text_id(config: dict[str, Any]) -> int | None:
    """Return the id of the end-of-text token; the first if there are several."""
    ids = config.get("eos_token_id")
    return ids[0] if isinstance(ids, list) and ids else ids if isinstance(ids, int) else None


def _moe_config(moe: MoEShape, layout: Layout) -> dict[str, Any]:
    config: dict[str, Any] = {"num_experts_per_tok": moe.experts_per_token}
    if layout in ("mixtral", "gpt_oss", "llama4_text"):
        config |= {"num_local_experts": moe.num_experts, "intermediate_size": moe.expert_size}
        return config if moe.swiglu_limit is None else config | {"swiglu_limit": moe.swiglu_limit}
    config |= {"moe_intermediate_size": moe.expert_size, "norm_topk_prob": moe.normalise_weights}
    if layout == "qwen3_moe":
        return config | {
            "num_experts": moe.num_experts,
            "decoder_sparse_step": 1,
            "mlp_only_layers": list(range(moe.first_dense_layers)),
        }
    config |= {
        "n_routed_experts": moe.num_experts,
        "n_shared_experts": moe.shared_experts,
        "first_k_dense_replace": moe.first_dense_layers,
        "routed_scaling_factor": moe.weight_scale,
        "n_group": moe.num_groups,
        "topk_group": moe.groups_per_token,
    }
    if layout == "deepseek_v2":
        method = "group_limited_greedy" if moe.num_groups > 1 else "greedy"
        return config | {"scoring_func": "softmax", "topk_method": method}
    config["num_nextn_predict_layers"] = 0
    if layout == "deepseek_v3":
        config |= {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "rope_interleave": True}
    return config


def _moe_shape(config: dict[str, Any]) -> MoEShape | None:
    kind, per_token = config["model_type"], config.get("num_experts_per_tok")
    if kind == "gpt_oss" and not isinstance(config["swiglu_limit"], int | float):
        raise refused("swiglu_limit", config["swiglu_limit"], "it must be a number")
    if kind in ("mixtral", "gpt_oss"):
        return MoEShape(
            num_experts=config["num_local_experts"],
            experts_per_token=per_token,
            expert_size=config["intermediate_size"],
            biases=kind == "gpt_oss",
            swiglu_limit=config["swiglu_limit"] if kind == "gpt_oss" else None,
        )
    if kind == "llama4_text":
        return MoEShape(
            num_experts=config["num_local_experts"],
            experts_per_token=per_token,
            expert_size=config["intermediate_size"],
            shared_experts=1,
            layer_interval=expert_interval(config),
            scoring="sigmoid",
            normalise_weights=False,
            weigh_inputs=True,
        )
    if kind == "qwen3_moe":
        dense = config.get("mlp_only_layers") or []
        if dense != list(range(len(dense))):
            raise refused("mlp_only_layers", dense, "only the first layers can be dense")
        return MoEShape(
            num_experts=config["num_experts"],
            experts_per_token=per_token,
            expert_size=config["moe_intermediate_size"],
            first_dense_layers=len(dense),
            normalise_weights=config["norm_topk_prob"],
        )
    if kind in ("glm4_moe", "deepseek_v2", "deepseek_v3"):
        scoring = BY_TYPE[kind].experts
        if config.get("scoring_func", scoring) != scoring:
            raise refused("scoring_func", config["scoring_func"], f"only {scoring!r} is computed")
        if kind == "deepseek_v2" and config["norm_topk_prob"]:  # `transformers` would not normalize them
            raise refused("norm_topk_prob", config["norm_topk_prob"], "only False is computed")
        has_groups = _has_groups(kind, config.get("topk_method"))
        return MoEShape(
            num_experts=config["n_routed_experts"],
            experts_per_token=per_token,
            expert_size=config["moe_intermediate_size"],
            num_groups=(config["n_group"] if has_groups else None) or 1,
            groups_per_token=(config["topk_group"] if has_groups else None) or 1,
            shared_experts=config["n_shared_experts"],
            first_dense_layers=config["first_k_dense_replace"],
            scoring=scoring,
            normalise_weights=config["norm_topk_prob"],
            weight_scale=config["routed_scaling_factor"],
        )
    return None


def _has_groups(kind: str, method: object) -> bool:
    """Return whether experts are chosen by `n_group` and `topk_group`. Raises ValueError for an unknown method."""
    methods = {"deepseek_v2": ("greedy", "group_limited_greedy"), "deepseek_v3": ("noaux_tc",)}.get(kind, (None,))
    if method not in methods:
        raise refused("topk_method", method, f"only {', '.join(map(str, methods))} is computed")
    return method != "greedy"


def _scaling_config(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    return {"rope_type": scaling.kind} | {
        entry: getattr(scaling, name)
        for name, entry in _SCALING_ENTRIES[scaling.kind].items()
        if getattr(scaling, name) is not None
    }


def _longrope_config(scaling: RopeScaling) -> dict[str, Any]:
    """Return the entries of Phi-3: the factor of the length follows from two of them."""
    assert scaling.original_length is not None, "kind longrope needs it"
    entries: dict[str, Any] = {
        "type": "longrope",
        "short_factor": scaling.short_factors,
        "long_factor": scaling.long_factors,
    }
    if scaling.attention_factor is not None:
        entries["attention_factor"] = scaling.attention_factor
    return {
        "rope_scaling": entries,
        "original_max_position_embeddings": scaling.original_length,
        "max_position_embeddings": round(scaling.factor * scaling.original_length),
    }


def _scaling(rope: dict[str, Any], config: dict[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in _SCALING_ENTRIES:
        raise refused("rope_scaling", kind, f"only default, {', '.join(_SCALING_ENTRIES)} are computed")
    entries = _SCALING_ENTRIES[kind]
    found = {name: rope[entry] for name, entry in entries.items() if rope.get(entry) is not None}
    if kind == "longrope":
        found.setdefault("original_length", config.get("original_max_position_embeddings"))
        if found["original_length"] is None:
            del found["original_length"]
        else:
            found.setdefault("factor", max(1.0, config["max_position_embeddings"] / found["original_length"]))
    if kind == "yarn":
        found.setdefault("original_length", config["max_position_embeddings"])
        scales = {name: scale for name in ("mscale", "mscale_all_dim") if (scale := found.pop(name, None))}
        if "kv_lora_rank" in config:  # DeepSeek's scores of attention depend on one of them
            has_both = len(scales) == 2 and "attention_factor" not in found
            found |= scales if has_both else {name: scale for name, scale in scales.items() if name != "mscale"}
        elif len(scales) == 2:
            above, below = (0.1 * scale * log(rope["factor"]) + 1.0 for scale in scales.values())
            found.setdefault("attention_factor", above / below)
    if missing := [entries[name] for name in _REQUIRED_SCALING[kind] if name not in found]:
        raise KeyError(f"rope_scaling.{missing[0]}")
    return RopeScaling(kind=kind, **found)


def _has_windows_only(shape: ModelShape) -> bool:
    return shape.sliding_window is not None and shape.full_attention_every is None


def _refuse_unknown_quantization(found: object) -> None:
    """Refuse weights that are stored in another way than unquantized, or as DeepSeek-V3 in blocks of fp8."""
    block = [QUANTIZATION_BLOCK] * 2
    is_known = isinstance(found, dict) and (found.get("quant_method"), found.get("weight_block_size")) == ("fp8", block)
    if found is not None and not is_known:
        why = f"only quant_method fp8 with weight_block_size {block}, and mxfp4 of gpt_oss, are read"
        raise refused("quantization_config", found, why)


def _no_layout(field: str, value: object, why: str) -> ValueError:
    return ValueError(f"model.shape.moe.{field} {value} cannot be exported to Hugging Face: {why}")
