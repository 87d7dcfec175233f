"""Layers that differ in attention and positions: the entries of `config.json` that say in what, both ways."""

from typing import Any

from trainer.contract.models import MAX_LAYERS, ModelShape
from trainer.contract.positions import TemperatureTuning

LOCAL_BASE = "rope_local_base_freq"


def refused(entry: str, value: object, why: str) -> ValueError:
    """Return the error of an entry that this decoder does not compute."""
    return ValueError(f"config.json: {entry} is {value!r}; {why}: take another model")


def layer_types_config(shape: ModelShape, sequence_length: int, scaling: dict[str, Any] | None) -> dict[str, Any]:
    """Return the entries of a layout with a type for each layer: its types, and the positions of each type where they
    differ. `scaling`: the entries of scaled positions. `transformers` asks for a window even where no layer has one."""
    windows = map(shape.window_of, range(shape.num_layers))
    types = {
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": shape.sliding_window or sequence_length,
    }
    full = {"rope_type": "default", "rope_theta": shape.rope_theta} | (scaling or {})
    if shape.scale_window_rope:
        return types | {"rope_parameters": full}
    windowed = {"rope_type": "default", "rope_theta": shape.window_rope_theta or shape.rope_theta}
    return types | {"rope_parameters": {"full_attention": full, "sliding_attention": windowed}}


def chunked_layers_config(shape: ModelShape, sequence_length: int) -> dict[str, Any]:
    """Return the entries of Llama 4 that differ between layers. `transformers` asks for the size of chunks even where
    no layer has any."""
    layers, tuning = range(shape.num_layers), shape.temperature_tuning or TemperatureTuning()
    chunks = map(shape.chunk_of, layers)
    return {
        "layer_types": ["full_attention" if chunk is None else "chunked_attention" for chunk in chunks],
        "attention_chunk_size": shape.attention_chunk_size or sequence_length,
        "no_rope_layers": [int(shape.has_rope(layer)) for layer in layers],
        "attn_temperature_tuning": shape.temperature_tuning is not None,
        **tuning.model_dump(),
        "moe_layers": [layer for layer in layers if shape.is_moe_layer(layer)],
        "intermediate_size_mlp": shape.intermediate_size,
    }


def chunks_of_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return what Llama 4 has in only some layers: chunks, no positions, and factors of queries. Raises ValueError for
    layers in another order."""
    every, size = _layer_numbers(config), config["attention_chunk_size"]
    rotated = config["no_rope_layers"] or [int(n % config["no_rope_layer_interval"] != 0) for n in every]
    rotated = rotated[: len(every)]
    without = _interval("no_rope_layers", rotated, [0, 1], "layers without positions are computed", len(every))
    if without == 1:
        raise refused("no_rope_layers", rotated, "only layers with positions, or every n-th without, are computed")
    kinds = ["full_attention", "chunked_attention"]
    types = config["layer_types"] or [kinds[each] for each in rotated]
    full = _interval("layer_types", types, kinds, "full attention is computed", len(every))
    tuning = {name: config[name] for name in TemperatureTuning.model_fields}
    is_tuned = config["attn_temperature_tuning"] and without is not None
    return {
        "attention_chunk_size": None if full == 1 else size,
        "full_attention_every": None if full == 1 or size is None else full,
        "no_rope_every": without,
        "temperature_tuning": TemperatureTuning(**tuning) if is_tuned else None,
    }


def expert_interval(config: dict[str, Any]) -> int:
    """Return the interval of layers with experts of Llama 4. Raises ValueError for layers in another order."""
    found, layers = config["moe_layers"], config["num_hidden_layers"]
    if found is None:
        return int(config["interleave_moe_layer_step"])
    interval = found[0] + 1 if found else layers + 1
    if interval < 1 or interval > layers or found != list(range(interval - 1, layers, interval)):
        raise refused("moe_layers", found, "experts are computed in every n-th layer, and in one at least")
    return int(interval)


def _layer_numbers(config: dict[str, Any]) -> range:
    """Return the numbers of the layers from 1."""
    layers = config["num_hidden_layers"]
    if layers > MAX_LAYERS:
        raise refused("num_hidden_layers", layers, f"it must be at most {MAX_LAYERS}")
    return range(1, layers + 1)


def _interval(entry: str, found: list[Any], kinds: list[Any], what: str, layers: int) -> int | None:
    """Return n where every n-th layer has the first of two kinds, and the others the second; None: no layer has it."""
    interval = found.index(kinds[0]) + 1 if kinds[0] in found else None
    if found != [kinds[0 if interval is not None and n % interval == 0 else 1] for n in range(1, layers + 1)]:
        raise refused(entry, found, f"{what} in every n-th layer")
    return interval


def windows_of_config(config: dict[str, Any]) -> dict[str, int | None]:
    """Return the window and the interval of the layers without one. Raises ValueError for layers in another order."""
    every, window, kinds = _layer_numbers(config), config["sliding_window"], ["full_attention", "sliding_attention"]
    types = config["layer_types"] or [kinds[n % config["sliding_window_pattern"] != 0] for n in every]
    interval = _interval("layer_types", types, kinds, "full attention is computed", len(every))
    if window is None or interval == 1:
        return {"sliding_window": None, "full_attention_every": None}
    return {"sliding_window": window, "full_attention_every": interval}


def rope_of_full_attention(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return the positions of layers with full attention, of a configuration that has them for each type of layer.

    The base of the others' becomes an entry of `config` where the family has one. Raises ValueError where they are
    scaled, or have another base without such an entry.
    """
    full, windowed = rope["full_attention"], rope.get("sliding_attention") or {}
    theta = full.get("rope_theta")
    other = windowed.get("rope_theta", theta)
    if windowed.get("rope_type", "default") != "default" or (other != theta and LOCAL_BASE not in config):
        why = f"only default positions with rope_theta {theta} are computed"
        raise refused("rope_parameters.sliding_attention", windowed, why)
    config[LOCAL_BASE] = other
    return dict(full)


def refuse_windows(config: dict[str, Any]) -> None:
    """Refuse windows of only some layers, and those of families that have none here."""
    kinds = set(config.get("layer_types") or [])
    if kinds - {"full_attention"}:
        raise refused("layer_types", ", ".join(sorted(kinds)), "only full_attention is computed")
    if config.get("use_sliding_window") and config.get("sliding_window") is not None:
        raise refused("sliding_window", config["sliding_window"], "only full attention is computed")
