"""The text part of models for images and text is read, trained and exported as a model of its own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from trainer.contract.hugging_face import shape_of_config, text_config
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.errors import TrainerError
from trainer.export.folder import with_base
from trainer.export.read import load_exported

TOKENS = torch.arange(64).view(2, 32)
TEXT = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 56, "vocab_size": 300, "sliding_window": 9, "max_position_embeddings": 64, "eos_token_id": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
VISION = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
LLAMA4_TEXT = {
    **{name: TEXT[name] for name in TEXT if name not in ("layer_types", "sliding_window")},
    "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 24, "intermediate_size_mlp": 56,
    "interleave_moe_layer_step": 2, "attention_chunk_size": 9, "no_rope_layer_interval": 3, "floor_scale": 5,
}  # fmt: skip
LLAMA4_VISION = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 28,
    "patch_size": 14, "vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16,
}  # fmt: skip


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run; the model for images and text uses its tokenizer."""
    return run_alone(tmp_path_factory.mktemp("first") / "run", tiny_training(steps=4))


@pytest.fixture(scope="module")
def whole(first: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model for images and text, as `transformers` saves it."""
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(3)
    config = transformers.Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4)
    model = transformers.Gemma3ForConditionalGeneration(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(first.output / "model" / name, folder / name)
    return folder


def adapting(folder: Path, **changes: Any) -> TrainingSpec:
    fields = {"model": {"base": str(folder)}, "tokenizer": {}, "steps": 4, "schedule": {"warmup_steps": 1}, **changes}
    return with_base(tiny_training(**fields), folder)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_computes_what_transformers_does(whole: Path, tmp_path: Path, prefix: str) -> None:
    theirs = transformers.Gemma3ForConditionalGeneration.from_pretrained(whole)
    with torch.no_grad():
        expected = theirs(input_ids=TOKENS).logits
    weights = load_file(whole / "model.safetensors")
    renamed = {name.replace("language_model.model.", prefix): tensor for name, tensor in weights.items()}
    folder = shutil.copytree(whole, tmp_path / "renamed")
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    model, _ = load_exported(folder)
    with torch.no_grad():
        found = model(TOKENS)
    assert torch.allclose(found, expected, atol=1e-4), (found - expected).abs().max()


def write_llama4(folder: Path, first: FinishedRun) -> transformers.PreTrainedModel:
    """Write a tiny random Llama 4 for images and text, and return it."""
    torch.manual_seed(3)
    config = transformers.Llama4Config(text_config=LLAMA4_TEXT, vision_config=LLAMA4_VISION)
    theirs = transformers.Llama4ForConditionalGeneration(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(first.output / "model" / name, folder / name)
    return theirs


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_llama_4_is_read(tmp_path: Path, first: FinishedRun, prefix: str) -> None:
    theirs = write_llama4(tmp_path, first)
    weights = load_file(tmp_path / "model.safetensors")
    assert any(name.startswith("language_model.model.") for name in weights)
    renamed = {name.replace("language_model.model.", prefix): tensor for name, tensor in weights.items()}
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ours, _ = load_exported(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(ours(TOKENS), theirs(input_ids=TOKENS).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"lora": {"rank": 4, "quantization": "nf4"}, "parallelism": {"zero": 3}},
        {"lora": None, "precision": "bf16", "parallelism": {"context": 2, "zero": 1}},
    ],
    ids=["nf4", "ring bf16"],
)
def test_the_text_part_of_llama_4_is_trained_and_exported(
    tmp_path: Path, first: FinishedRun, changes: dict[str, Any]
) -> None:
    base = tmp_path / "base"
    write_llama4(base, first)
    data = first.output.parent / "tiny.txt"
    run = run_alone(tmp_path / "run", adapting(base, **changes), data=data, processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    ours, _ = load_exported(run.output / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run.output / "model", dtype=torch.float32)
    assert type(theirs).__name__ == "Llama4ForCausalLM"
    with torch.no_grad():
        assert torch.allclose(ours.float()(TOKENS), theirs(input_ids=TOKENS).logits, atol=1e-4)


def test_the_text_part_is_trained_and_exported_alone(whole: Path, first: FinishedRun, tmp_path: Path) -> None:
    data = first.output.parent / "tiny.txt"
    run = run_alone(tmp_path / "run", adapting(whole, lora={"rank": 4}), data=data, processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    ours, _ = load_exported(run.output / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run.output / "model")
    assert type(theirs).__name__ == "Gemma3ForCausalLM"
    with torch.no_grad():
        assert torch.allclose(ours(TOKENS), theirs(input_ids=TOKENS).logits, atol=1e-4)
    config = json.loads((run.output / "model/config.json").read_text())
    assert (config["model_type"], config["max_position_embeddings"], config["eos_token_id"]) == ("gemma3_text", 64, 0)
    assert "vision_config" not in config


def test_an_adapter_alone_of_a_text_part_is_refused_with_the_remedy(whole: Path, first: FinishedRun) -> None:
    with pytest.raises(TrainerError, match="models? for images and text.*set lora.export to merged"):
        adapting(whole, lora={"rank": 4, "export": "adapter"})


def test_entries_that_published_configurations_leave_out_have_their_values() -> None:
    published = {  # those of a Gemma 3 of 4 billion parameters
        "model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {},
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34, "sliding_window": 1024,
            "model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        },
    }  # fmt: skip
    config = text_config(published)
    shape = shape_of_config(config)
    assert (config["vocab_size"], config["eos_token_id"]) == (262_208, [1, 106])
    assert (shape.num_heads, shape.num_kv_heads, shape.head_size, shape.full_attention_every) == (8, 4, 256, 6)
    assert shape.num_parameters(config["vocab_size"]) == pytest.approx(3.88e9, rel=1e-3)
