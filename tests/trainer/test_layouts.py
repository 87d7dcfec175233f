"""Models of each of Hugging Face's layouts, from `transformers` to here and back: the same logits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.trainer.families import LENGTH, SHAPES, SIZES, SOFTMAX, TOKENS, VOCABULARY, export, our_model, write_random
from tests.trainer.runs import tiny_training
from trainer.contract.hugging_face import hugging_face_config, layout_of, shape_of_config
from trainer.contract.models import MODELS, ModelShape, MoEShape
from trainer.contract.positions import RopeScaling, TemperatureTuning
from trainer.errors import TrainerError
from trainer.export.folder import read_config
from trainer.export.read import StoredWeights, load_decoder
from trainer.models.attention import rotary_frequencies
from trainer.models.decoder import Decoder


def refusal(name: str, changes: dict[str, Any]) -> str:
    """What is said of the configuration of a shape with changes; without them it is read."""
    config = hugging_face_config(SHAPES[name], VOCABULARY, LENGTH, "float32", end_of_text=0)
    assert shape_of_config(config) == SHAPES[name]
    with pytest.raises(ValueError, match=r"config\.json.*take another model") as caught:
        shape_of_config({**config, **changes})
    return str(caught.value)


def assert_equal_logits(ours: Decoder, folder: Path) -> None:
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs.eval()(TOKENS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_transformers_computes_what_was_exported(name: str, tmp_path: Path) -> None:
    model = our_model(SHAPES[name])
    export(model, tmp_path)
    assert_equal_logits(model, tmp_path)
    assert shape_of_config(read_config(tmp_path)) == SHAPES[name]


def test_the_preset_with_experts_can_be_exported(tmp_path: Path) -> None:
    model = our_model(MODELS["moe-1m"])
    export(model, tmp_path)
    assert_equal_logits(model, tmp_path)


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_of_transformers_computes_the_same_here(name: str, tmp_path: Path) -> None:
    theirs = write_random(SHAPES[name], tmp_path)
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    shape = shape_of_config(read_config(tmp_path / "theirs"))
    assert shape == SHAPES[name]
    ours = load_decoder(tmp_path / "theirs", shape, VOCABULARY, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs(TOKENS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (None, (9, 4)),
        (["sliding_attention", "full_attention"] * 2, (9, 2)),
        (["sliding_attention"] * 4, (9, None)),
        (["full_attention"] * 4, (None, None)),
    ],
)
def test_windows_are_read_from_the_types_of_layers(
    types: list[str] | None, expected: tuple[int | None, int | None]
) -> None:
    config = hugging_face_config(SHAPES["olmo3"], VOCABULARY, LENGTH, "float32", end_of_text=0)
    shape = shape_of_config({**config, "layer_types": types})
    assert (shape.sliding_window, shape.full_attention_every) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "every n-th layer"),
        ({"layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]}, "every n-th"),
        ({"layer_types": ["sliding_attention"] * 3}, "every n-th layer"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e3}}},
            "rope_parameters.sliding_attention is {'rope_theta': 1000.0}; only default positions",
        ),
    ],
)
def test_layers_in_another_order_or_with_other_positions_are_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refusal("olmo3", changes)


@pytest.mark.parametrize("name", ["olmo3", "gemma3"])
def test_layers_that_all_have_a_window_have_its_positions(name: str, tmp_path: Path) -> None:
    """Not those of layers with full attention, of which there are none: as for Gemma with fewer layers than 6."""
    write_random(SHAPES[name], tmp_path)
    config = {**read_config(tmp_path / "theirs"), "layer_types": ["sliding_attention"] * SHAPES[name].num_layers}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(config))
    shape = shape_of_config(config)
    assert (shape.rope_theta, shape.rope_scaling) == (1e4, None)
    assert_equal_logits(load_decoder(tmp_path / "theirs", shape, VOCABULARY, LENGTH), tmp_path / "theirs")


def test_scaled_positions_without_a_layer_that_has_them_are_refused() -> None:
    shape = SHAPES["olmo3"].model_copy(update={"full_attention_every": None})
    with pytest.raises(ValueError, match="rope_scaling yarn cannot be exported .* set full_attention_every"):
        layout_of(shape)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": 5}, {"layer_types": "full"}, {"layer_types": [1, 2, 3, 4]}, {"layer_types": [[]]},
        {"layer_types": ["chunked_attention"] * 4}, {"sliding_window_pattern": 0, "layer_types": None},
        {"rope_parameters": "x"}, {"rope_parameters": {"full_attention": "x"}}, {"num_hidden_layers": "4"},
        {"num_hidden_layers": 10**12, "layer_types": None}, {"num_attention_heads": 0}, {"sliding_window": "x"},
        {"rope_parameters": {"full_attention": {}, "sliding_attention": "x"}}, {"vocab_size": 0},
    ],
    ids=str,
)  # fmt: skip
def test_entries_of_another_kind_are_refused_without_much_work(changes: dict[str, Any]) -> None:
    """A user writes the configuration of a base model, and the web server reads it."""
    assert refusal("gemma3", changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu'; only 'gelu_pytorch_tanh'"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; only None"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True; only False"),
        ({"model_type": "gemma3"}, "model_type is 'gemma3'; it must be one of"),
    ],
)
def test_what_gemma_could_have_besides_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refusal("gemma3", changes)


def test_gemma_as_published_before_positions_had_types_is_read() -> None:
    """Entries of the 1B model: a base for each kind of layer, no types, and the defaults of the family."""
    published = {
        "model_type": "gemma3_text", "hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "max_position_embeddings": 32768, "pad_token_id": 0, "attention_bias": False,
    }  # fmt: skip
    shape = shape_of_config(published)
    assert (shape.rope_theta, shape.window_rope_theta, shape.full_attention_every) == (1e6, 1e4, 6)
    assert shape.tie_embeddings
    assert 999_000_000 < shape.num_parameters(262144) < 1_001_000_000


def test_gemma_2_as_published_is_read() -> None:
    """Entries of the 2B model; its `hidden_act` has no effect."""
    published = {
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256_000,
        "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "sliding_window": 4096, "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid",
        "pad_token_id": 0, "attention_bias": False,
    }  # fmt: skip
    shape = shape_of_config(published)
    assert (shape.attn_logit_softcapping, shape.final_logit_softcapping) == (50.0, 30.0)
    assert (shape.sliding_window, shape.full_attention_every, shape.tie_embeddings) == (4096, 2, True)
    assert shape.num_parameters(256_000) == 2_614_341_888


PUBLISHED_GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201_088, "hidden_act": "silu",
    "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4, "rms_norm_eps": 1e-5,
    "rope_theta": 150_000, "swiglu_limit": 7.0, "sliding_window": 128, "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "tie_word_embeddings": False,
    "max_position_embeddings": 131_072, "initial_context_length": 4096, "pad_token_id": 199_999,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_type": "yarn", "truncate": False,
    },
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}  # fmt: skip


def test_gpt_oss_as_published_is_read() -> None:
    """Entries of the 20B model, which has quantized weights."""
    shape = shape_of_config(PUBLISHED_GPT_OSS)
    assert shape.moe is not None and shape.rope_scaling is not None
    assert (shape.sliding_window, shape.full_attention_every, shape.moe.swiglu_limit) == (128, 2, 7.0)
    assert (shape.scale_window_rope, shape.rope_scaling.truncate) == (True, False)
    assert shape.num_parameters(201_088) == 20_914_757_184
    assert layout_of(shape) == "gpt_oss"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": False}, "attention_bias is False; only True"),
        ({"swiglu_alpha": 2.0}, "swiglu_alpha is 2.0; only 1.702"),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config is {'quant_method': 'fp8'}; only quant_method fp8 with",
        ),
        ({"quantization_config": "mxfp4"}, "quantization_config is 'mxfp4'; only quant_method fp8 with"),
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "every n-th layer"),
        ({"swiglu_limit": None}, "swiglu_limit is None; it must be a number"),
    ],
)
def test_what_gpt_oss_could_have_besides_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refusal("gpt-oss", changes)


PUBLISHED_SCOUT = {
    "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 202_048, "hidden_act": "silu", "num_local_experts": 16, "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "use_qk_norm": True,
    "attention_chunk_size": 8192, "attention_bias": False, "no_rope_layers": [], "pad_token_id": 200_018,
    "attn_temperature_tuning": True, "floor_scale": 8192, "attn_scale": 0.1, "max_position_embeddings": 10_485_760,
    "rope_scaling": {
        "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip


def test_the_sizes_of_llama_4_are_read() -> None:
    """Of Scout, with 16 experts in each layer, and of Maverick, with 128 in every second one: 109 and 400 billion with
    their part for images, and 17 billion parameters of a token."""
    scout = shape_of_config(PUBLISHED_SCOUT)
    assert (scout.attention_chunk_size, scout.full_attention_every, scout.no_rope_every) == (8192, 4, 4)
    assert scout.temperature_tuning == TemperatureTuning(floor_scale=8192, attn_scale=0.1)
    assert scout.num_parameters(202_048) == 107_769_861_120
    maverick = shape_of_config(
        {**PUBLISHED_SCOUT, "num_local_experts": 128, "interleave_moe_layer_step": 2, "use_qk_norm": False}
    )
    assert (maverick.l2_qk_norm, [maverick.is_moe_layer(layer) for layer in range(4)]) == (False, [False, True] * 2)
    assert maverick.num_parameters(202_048) == pytest.approx(400.0e9, rel=5e-3)
    for shape in (scout, maverick):
        active = sum(shape.mlp_parameters(n, active=True) + shape.attention_parameters() for n in range(48))
        assert active + 2 * 202_048 * 5120 == pytest.approx(17e9, rel=0.03)
        assert layout_of(shape) == "llama4_text"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no_rope_layers": [0, 1, 1, 1]}, "no_rope_layers is [0, 1, 1, 1]; layers without positions are computed in"),
        ({"no_rope_layers": [0, 0, 0, 0]}, "no_rope_layers is [0, 0, 0, 0]; only layers with positions, or every n-th"),
        ({"no_rope_layers": [1, 1, 1]}, "no_rope_layers is [1, 1, 1]; layers without positions"),
        ({"layer_types": ["full_attention", "chunked_attention"] * 2}, "full attention is computed in every n-th"),
        ({"layer_types": ["sliding_attention"] * 4}, "full attention is computed in every n-th layer"),
        ({"moe_layers": [0, 2]}, "moe_layers is [0, 2]; experts are computed in every n-th layer"),
        ({"moe_layers": []}, "moe_layers is []; experts are computed in every n-th layer, and in one at least"),
        ({"moe_layers": [-1]}, "moe_layers is [-1]; experts are computed in every n-th layer"),
        ({"moe_layers": None, "interleave_moe_layer_step": 0}, "greater than or equal to 1 (0)"),
        ({"moe_layers": None, "interleave_moe_layer_step": 5}, "moe.layer_interval 5 leaves none of num_layers 4"),
        ({"attention_bias": True}, "attention_bias is True; only False"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"no_rope_layers": 4}, "an entry of another type"),
        ({"num_hidden_layers": 10**12, "no_rope_layers": None}, "it must be at most 1024"),
        ({"model_type": "llama4"}, "model_type is 'llama4'; it must be one of"),
    ],
)
def test_what_llama_4_could_have_besides_is_refused(changes: dict[str, Any], message: str) -> None:
    assert message in refusal("llama4-scout", changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shared_experts": 2}, "moe.shared_experts 2 cannot be exported to Hugging Face: llama4_text knows only 1"),
        ({"balance_rate": 0.1}, "moe.balance_rate 0.1"),
        ({"weigh_inputs": False}, "moe.weigh_inputs False"),
        ({"first_dense_layers": 1}, "moe.first_dense_layers 1"),
    ],
)
def test_experts_that_llama_4_does_not_have_are_refused(changes: dict[str, Any], message: str) -> None:
    shape = SHAPES["llama4-scout"]
    assert shape.moe is not None
    with pytest.raises(ValueError, match=message):
        layout_of(shape.model_copy(update={"moe": shape.moe.model_copy(update=changes)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 8, "attention_chunk_size": 8}, "attention_chunk_size and sliding_window are of different"),
        ({"temperature_tuning": {}}, "temperature_tuning needs no_rope_every"),
        ({"full_attention_every": 2}, "full_attention_every needs a sliding_window"),
    ],
)
def test_features_that_exclude_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelShape(**SIZES, **changes)


def test_a_model_quantized_to_four_bits_is_read_in_bf16(tmp_path: Path) -> None:
    """Random groups, against `transformers`, and any part of them."""
    shape = SHAPES["gpt-oss"].model_copy(update={"hidden_size": 96})
    shape = shape.model_copy(update={"moe": SHAPES["gpt-oss"].moe.model_copy(update={"expert_size": 64})})
    model = our_model(shape)
    export(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    generator, expected = torch.Generator().manual_seed(8), {}
    for layer in range(shape.num_layers):
        for name, rows, columns in (("gate_up_proj", 128, 96), ("down_proj", 96, 64)):
            stored = f"model.layers.{layer}.mlp.experts.{name}"
            blocks = torch.randint(0, 256, (4, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(110, 130, blocks.shape[:-1], generator=generator, dtype=torch.uint8)
            tensors |= {f"{stored}_blocks": blocks, f"{stored}_scales": scales}
            del tensors[stored]
            expected[stored] = convert_moe_packed_tensors(blocks, scales)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    stored_weights = StoredWeights(tmp_path, shape)
    for layer in range(shape.num_layers):
        both = expected[f"model.layers.{layer}.mlp.experts.gate_up_proj"].mT
        parts = {"gate": both[:, ::2], "up": both[:, 1::2]}
        parts["down"] = expected[f"model.layers.{layer}.mlp.experts.down_proj"].mT
        for name, part in parts.items():
            own_name, full = f"blocks.{layer}.mlp.experts.{name}", tuple(part.shape)
            assert torch.equal(stored_weights.whole(own_name, full), part)
            found = stored_weights.part(own_name, (1, 5, 17), (2, 20, 30), full)
            assert torch.equal(found, part[1:3, 5:25, 17:47])


def test_a_scaling_that_phi_does_not_know_is_refused() -> None:
    shape = SHAPES["phi3"].model_copy(update={"rope_scaling": RopeScaling(kind="linear", factor=2.0)})
    with pytest.raises(
        ValueError, match="rope_scaling linear cannot be exported to Hugging Face: phi3 knows only longrope"
    ):
        layout_of(shape)


@pytest.mark.parametrize(
    ("entry", "expected"), [(None, None), (0, 0), (-1, VOCABULARY - 1), (VOCABULARY, None), (-VOCABULARY - 1, None)]
)
def test_the_padding_token_is_a_row_of_the_embeddings_or_none(entry: int | None, expected: int | None) -> None:
    config = hugging_face_config(SHAPES["llama"], VOCABULARY, LENGTH, "float32", end_of_text=0)
    assert shape_of_config({**config, "pad_token_id": entry}).pad_token_id == expected


@pytest.mark.parametrize("name", ["llama", "glm4-moe", "gpt-oss", "llama4-maverick"])
def test_a_part_of_a_stored_tensor_is_that_part(name: str, tmp_path: Path) -> None:
    model = our_model(SHAPES[name])
    export(model, tmp_path, largest_bytes=20_000)
    stored = StoredWeights(tmp_path, SHAPES[name])
    for own_name, tensor in model.state_dict().items():
        offsets = tuple(size // 2 for size in tensor.shape)
        sizes = tuple(size - offset for size, offset in zip(tensor.shape, offsets, strict=True))
        expected = tensor[tuple(slice(offset, None) for offset in offsets)]
        assert torch.equal(stored.part(own_name, offsets, sizes, tuple(tensor.shape)), expected), own_name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias is True; only False"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}, "sliding_window is 8"),
        ({"model_type": "gemma"}, "model_type is 'gemma'; it must be one of llama, mistral"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_scaling is 'dynamic'; only default, linear"),
        ({"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 8}}, "rope_scaling.factor is miss"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, "rope_scaling.low_freq_factor is missing"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is 'full_attention, s"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"hidden_size": None}, "hidden_size is None; it must be a whole number"),
    ],
)  # fmt: skip
def test_what_this_decoder_does_not_compute_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    assert message in refusal("llama", changes)


@pytest.mark.parametrize(
    ("moe", "field"),
    [
        (SOFTMAX.model_copy(update={"shared_experts": 1}), "moe.shared_experts 1"),
        (SOFTMAX.model_copy(update={"balance_rate": 0.1}), "moe.balance_rate 0.1"),
        (SOFTMAX.model_copy(update={"first_dense_layers": 1}), "moe.first_dense_layers 1"),
        (SOFTMAX.model_copy(update={"scoring": "sigmoid"}), "moe.shared_experts 0"),
        (SOFTMAX.model_copy(update={"biases": True}), "moe.biases True"),
        (SOFTMAX.model_copy(update={"swiglu_limit": 7.0}), "moe.swiglu_limit 7.0"),
        (SOFTMAX.model_copy(update={"weigh_inputs": True}), "moe.weigh_inputs True"),
        (SOFTMAX.model_copy(update={"layer_interval": 2}), "moe.layer_interval 2"),
    ],
)
def test_experts_that_no_layout_has_are_refused_by_name(moe: MoEShape, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        layout_of(ModelShape(**SIZES, moe=moe))


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    model = our_model(SHAPES["llama"])
    export(model, tmp_path)
    stored = StoredWeights(tmp_path, SHAPES["llama"])
    with pytest.raises(TrainerError, match=r"no tensor model.layers.7.mlp.up_proj.weight"):
        stored.whole("blocks.7.mlp.up.weight", (56, 32))
    with pytest.raises(
        TrainerError, match=r"lm_head.weight .* has the shape \[96, 32\], but its config.json requires \[99"
    ):
        stored.whole("head.weight", (99, 32))


def test_counts_of_parameters_are_those_of_the_model() -> None:
    for shape in [*SHAPES.values(), tiny_training().model.resolve()]:
        counted = sum(parameter.numel() for parameter in Decoder(shape, 300, 32).parameters())
        assert counted == shape.num_parameters(300)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"original_max_position_embeddings": 12}, RopeScaling(kind="yarn", factor=4.0, original_length=12)),
        ({}, RopeScaling(kind="yarn", factor=4.0, original_length=LENGTH)),
        (
            {"mscale": 1.0, "mscale_all_dim": 0.5},
            RopeScaling(kind="yarn", factor=4.0, original_length=LENGTH, attention_factor=1.06482),
        ),
    ],
)
def test_what_yarn_leaves_out_is_what_transformers_takes(entries: dict[str, float], expected: RopeScaling) -> None:
    config = hugging_face_config(SHAPES["llama"], VOCABULARY, LENGTH, "float32", end_of_text=0)
    found = shape_of_config({**config, "rope_scaling": {"type": "yarn", "factor": 4.0, **entries}}).rope_scaling
    assert found is not None
    assert found.amplitude == pytest.approx(expected.amplitude, rel=1e-5)
    assert found.model_copy(update={"attention_factor": expected.attention_factor}) == expected
    theirs = transformers.LlamaConfig(
        **{**config, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, **entries}}, attn_implementation="eager"
    )
    model = transformers.LlamaModel(theirs)
    assert model.rotary_emb.attention_scaling == pytest.approx(found.amplitude, rel=1e-6)
    torch.testing.assert_close(
        model.rotary_emb.inv_freq,
        rotary_frequencies(SHAPES["llama"].model_copy(update={"rope_scaling": found}), LENGTH),
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "yarn"}, "original_length is missing, which kind yarn needs"),
        ({"kind": "linear", "beta_fast": 8.0}, "beta_fast belongs to kind yarn, not linear"),
        ({"kind": "yarn", "original_length": 8, "beta_slow": 40.0}, "beta_slow 40.0 must be below beta_fast 32.0"),
    ],
)
def test_a_scaling_with_fields_of_another_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RopeScaling(factor=2.0, **fields)
