"""Models of each of Hugging Face's layouts, from `transformers` to here and back: the same logits."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.trainer.runs import tiny_training
from trainer.contract.hugging_face import hugging_face_config, layout_of, shape_of_config
from trainer.contract.models import MODELS, ModelShape, MoEShape, RopeScaling
from trainer.errors import TrainerError
from trainer.export.folder import read_config
from trainer.export.read import StoredWeights, load_decoder
from trainer.models.decoder import Decoder, initialise
from trainer.training.export import export_tensors, write_weights

VOCABULARY, LENGTH = 96, 48
SIZES = {"hidden_size": 32, "num_layers": 3, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 56}
SOFTMAX = MoEShape(num_experts=4, experts_per_token=2, expert_size=24)
STRETCHED = RopeScaling(factor=8.0, original_length=16)
SHAPES = {
    "llama": ModelShape(**SIZES),
    "llama-3.1": ModelShape(**SIZES, rope_theta=500.0, rope_scaling=STRETCHED, tie_embeddings=True),
    "qwen3": ModelShape(**SIZES, qk_norm=True, head_dim=16, norm_epsilon=1e-6),
    "qwen3-moe": ModelShape(
        **SIZES, qk_norm=True, moe=SOFTMAX.model_copy(update={"first_dense_layers": 1, "normalise_weights": False})
    ),
    "mixtral": ModelShape(**{**SIZES, "intermediate_size": 24}, moe=SOFTMAX),
    "glm4-moe": ModelShape(
        **SIZES,
        moe=MoEShape(
            num_experts=4, experts_per_token=2, expert_size=24, shared_experts=2, first_dense_layers=1,
            scoring="sigmoid", weight_scale=1.5,
        ),
    ),
}  # fmt: skip
TOKENS = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def our_model(shape: ModelShape) -> Decoder:
    """Random weights that are far enough from nothing for a wrong one to show."""
    model = Decoder(shape, VOCABULARY, LENGTH)
    initialise(model, seed=3)
    model.zero_buffers()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.empty_like(parameter).normal_(0, 0.1, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("balance") and layout_of(shape) == "glm4_moe":
                buffer.normal_(0, 0.3, generator=generator)
    return model.eval()


def export(model: Decoder, folder: Path, largest_bytes: int = 2**30) -> None:
    folder.mkdir(exist_ok=True)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        export_tensors(tensors, name, tensor, model.shape, torch.float32)
    write_weights(tensors, folder, largest_bytes)
    config = hugging_face_config(model.shape, VOCABULARY, LENGTH, "float32", end_of_text=0)
    (folder / "config.json").write_text(json.dumps(config))


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
    export(our_model(SHAPES[name]), tmp_path / "first")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "first")
    torch.manual_seed(7)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for tensor in theirs.parameters():
            tensor += 0.1 * torch.randn_like(tensor)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists()
    shape = shape_of_config(read_config(tmp_path / "theirs"))
    assert shape == SHAPES[name]
    ours = load_decoder(tmp_path / "theirs", shape, VOCABULARY, LENGTH)
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs(TOKENS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "glm4-moe"])
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
        ({"attention_bias": True}, "attention_bias is True"),
        ({"model_type": "gemma2"}, "model_type is 'gemma2'; it must be one of llama, mistral"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling is 'yarn'"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
        ({"model_type": "mistral"}, "sliding_window is 4096"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is 'full_attention, s"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"hidden_size": None}, "hidden_size is None; it must be a whole number"),
    ],
)  # fmt: skip
def test_what_this_decoder_does_not_compute_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    config = hugging_face_config(SHAPES["llama"], VOCABULARY, LENGTH, "float32", end_of_text=0)
    with pytest.raises(ValueError, match="config.json") as caught:
        shape_of_config({**config, **changes})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("moe", "field"),
    [
        (SOFTMAX.model_copy(update={"shared_experts": 1}), "moe.shared_experts 1"),
        (SOFTMAX.model_copy(update={"balance_rate": 0.1}), "moe.balance_rate 0.1"),
        (SOFTMAX.model_copy(update={"first_dense_layers": 1}), "moe.first_dense_layers 1"),
        (SOFTMAX.model_copy(update={"scoring": "sigmoid"}), "moe.shared_experts 0"),
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


def test_what_sways_the_experts_stays_exact_in_bf16(tmp_path: Path) -> None:
    model = our_model(SHAPES["glm4-moe"])
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        export_tensors(tensors, name, tensor, model.shape, torch.bfloat16)
    write_weights(tensors, tmp_path, 2**30)
    stored = load_file(tmp_path / "model.safetensors")
    balance = stored["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert torch.equal(balance, model.blocks["1"].mlp.balance)
    assert stored["model.layers.1.mlp.gate.weight"].dtype == torch.bfloat16


def test_counts_of_parameters_are_those_of_the_model() -> None:
    for shape in [*SHAPES.values(), tiny_training().model.resolve()]:
        counted = sum(parameter.numel() for parameter in Decoder(shape, 300, 32).parameters())
        assert counted == shape.num_parameters(300)
