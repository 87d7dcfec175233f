"""A model's `config.json` in Hugging Face's terms, both ways. What this decoder cannot compute is refused by name.

A layout is a model type of `transformers`.
"""

import hashlib
from collections.abc import Mapping
from math import log
from typing import Any

from pydantic import ValidationError

from trainer.contract.families import BY_TYPE, BY_WHOLE, Layout, family_of
from trainer.contract.models import MAX_LAYERS, MLAShape, ModelShape, MoEShape
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
LOCAL_BASE = "rope_local_base_freq"
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
    if moe.shared_experts == 0 and (moe.scoring == "sigmoid" or shape.mla is not None):
        raise _no_layout("shared_experts", 0, f"{name} needs at least 1")
    if moe.scoring == "sigmoid":
        return name
    limits: dict[str, object] = {"shared_experts": 0, "balance_rate": 0.0, "weight_scale": 1.0, "num_groups": 1}
    if name == "deepseek_v2":
        limits = {"balance_rate": 0.0, "normalise_weights": False}
    for field, only in limits.items():
        if getattr(moe, field) != only:
            raise _no_layout(field, getattr(moe, field), f"{name} knows only {only}; scoring `sigmoid` has a layout")
    if name in ("mixtral", "gpt_oss"):
        for field, only in (("first_dense_layers", 0), ("normalise_weights", True)):
            if getattr(moe, field) != only:
                raise _no_layout(field, getattr(moe, field), f"{name} knows only {only}; with qk_norm there is one")
    return name


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
    if "full_attention_every" in family.entries:
        config |= _layer_types_config(shape, sequence_length)
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
        raise _refused("model_type", kind, f"it must be one of {', '.join(BY_TYPE)}{with_parts}")
    config = {"num_key_value_heads": config.get("num_attention_heads"), **family.defaults, **config}
    for entry in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"):
        found = config.get(entry)
        if not isinstance(found, int) or found < 1:
            raise _refused(entry, found, "it must be a whole number of at least 1")
    if "num_local_experts" in config:  # newer releases write all types' number of experts so
        config["num_experts"] = config["n_routed_experts"] = config["num_local_experts"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise _refused("rope_parameters", rope, "it must be an object")
    if "full_attention" in rope:
        rope = _rope_of_full_attention(rope, config)
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
            raise _refused(entry, config[entry], f"only {only!r} is computed")
    _refuse_unknown_quantization(config.get("quantization_config"))
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    if "full_attention_every" in family.entries:
        features |= _windows(config)
        is_windowed = features["sliding_window"] is not None and features["full_attention_every"] is None
        if is_windowed and not features.get("scale_window_rope"):
            theta, rope = features.get("window_rope_theta") or theta, {}  # no layer has the others' positions
    else:
        _refuse_windows(config)
    if features.get("window_rope_theta") == theta or features.get("full_attention_every") is None:
        features.pop("window_rope_theta", None)
    moe, head_dim = _moe_shape(config), config.get("head_dim")
    if "mla" in family.entries:
        features["mla"], head_dim = MLAShape(**{name: config[name] for name in MLAShape.model_fields}), None
        if config["num_key_value_heads"] is None:
            config["num_key_value_heads"] = config["num_attention_heads"]
    sparse_size = moe.expert_size if moe is not None and kind in ("mixtral", "gpt_oss") else config["intermediate_size"]
    return ModelShape(
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        intermediate_size=sparse_size,
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
    if layout in ("mixtral", "gpt_oss"):
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
        raise _refused("swiglu_limit", config["swiglu_limit"], "it must be a number")
    if kind in ("mixtral", "gpt_oss"):
        return MoEShape(
            num_experts=config["num_local_experts"],
            experts_per_token=per_token,
            expert_size=config["intermediate_size"],
            biases=kind == "gpt_oss",
            swiglu_limit=config["swiglu_limit"] if kind == "gpt_oss" else None,
        )
    if kind == "qwen3_moe":
        dense = config.get("mlp_only_layers") or []
        if dense != list(range(len(dense))):
            raise _refused("mlp_only_layers", dense, "only the first layers can be dense")
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
            raise _refused("scoring_func", config["scoring_func"], f"only {scoring!r} is computed")
        if kind == "deepseek_v2" and config["norm_topk_prob"]:  # `transformers` would not normalize them
            raise _refused("norm_topk_prob", config["norm_topk_prob"], "only False is computed")
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
        raise _refused("topk_method", method, f"only {', '.join(map(str, methods))} is computed")
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
        raise _refused("rope_scaling", kind, f"only default, {', '.join(_SCALING_ENTRIES)} are computed")
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


def _layer_types_config(shape: ModelShape, sequence_length: int) -> dict[str, Any]:
    """Return the entries of a layout with a type for each layer: its types, and the positions of each type where they
    differ. `transformers` asks for a window even where no layer has one."""
    types = {"layer_types": _layer_types(shape), "sliding_window": shape.sliding_window or sequence_length}
    full = {"rope_type": "default", "rope_theta": shape.rope_theta} | (_scaling_config(shape.rope_scaling) or {})
    if shape.scale_window_rope:
        return types | {"rope_parameters": full}
    windowed = {"rope_type": "default", "rope_theta": shape.window_rope_theta or shape.rope_theta}
    return types | {"rope_parameters": {"full_attention": full, "sliding_attention": windowed}}


def _layer_types(shape: ModelShape) -> list[str]:
    windows = map(shape.window_of, range(shape.num_layers))
    return ["full_attention" if window is None else "sliding_attention" for window in windows]


def _windows(config: dict[str, Any]) -> dict[str, int | None]:
    """Return the window and the interval of the layers without one. Raises ValueError for layers in another order."""
    layers, window = config["num_hidden_layers"], config["sliding_window"]
    if layers > MAX_LAYERS:
        raise _refused("num_hidden_layers", layers, f"it must be at most {MAX_LAYERS}")
    every = range(1, layers + 1)
    types = config["layer_types"] or [
        "full_attention" if n % config["sliding_window_pattern"] == 0 else "sliding_attention" for n in every
    ]
    interval = types.index("full_attention") + 1 if "full_attention" in types else None
    expected = ["full_attention" if interval is not None and n % interval == 0 else "sliding_attention" for n in every]
    if types != expected:
        raise _refused("layer_types", types, "full attention is computed in every n-th layer")
    if window is None or interval == 1:
        return {"sliding_window": None, "full_attention_every": None}
    return {"sliding_window": window, "full_attention_every": interval}


def _rope_of_full_attention(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return the positions of layers with full attention, of a configuration that has them for each type of layer.

    The base of the others' becomes an entry of `config` where the family has one. Raises ValueError where they are
    scaled, or have another base without such an entry.
    """
    full, windowed = rope["full_attention"], rope.get("sliding_attention") or {}
    theta = full.get("rope_theta")
    other = windowed.get("rope_theta", theta)
    if windowed.get("rope_type", "default") != "default" or (other != theta and LOCAL_BASE not in config):
        why = f"only default positions with rope_theta {theta} are computed"
        raise _refused("rope_parameters.sliding_attention", windowed, why)
    config[LOCAL_BASE] = other
    return dict(full)


def _refuse_unknown_quantization(found: object) -> None:
    """Refuse weights that are stored in another way than unquantized, or as DeepSeek-V3 in blocks of fp8."""
    block = [QUANTIZATION_BLOCK] * 2
    is_known = isinstance(found, dict) and (found.get("quant_method"), found.get("weight_block_size")) == ("fp8", block)
    if found is not None and not is_known:
        why = f"only quant_method fp8 with weight_block_size {block}, and mxfp4 of gpt_oss, are read"
        raise _refused("quantization_config", found, why)


def _refuse_windows(config: dict[str, Any]) -> None:
    """Refuse windows of only some layers, and those of families that have none here."""
    kinds = set(config.get("layer_types") or [])
    if kinds - {"full_attention"}:
        raise _refused("layer_types", ", ".join(sorted(kinds)), "only full_attention is computed")
    if config.get("use_sliding_window") and config.get("sliding_window") is not None:
        raise _refused("sliding_window", config["sliding_window"], "only full attention is computed")


def _refused(entry: str, value: object, why: str) -> ValueError:
    return ValueError(f"{CONFIG_NAME}: {entry} is {value!r}; {why}: take another model")


def _no_layout(field: str, value: object, why: str) -> ValueError:
    return ValueError(f"model.shape.moe.{field} {value} cannot be exported to Hugging Face: {why}")
