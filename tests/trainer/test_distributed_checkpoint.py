"""Weights of torch.distributed.checkpoint become a folder that computes the same."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import transformers
from torch import Tensor

from tests.trainer.families import LENGTH, SHAPES, SIZES, VOCABULARY, exported_state, our_model
from trainer.contract.hugging_face import hugging_face_config
from trainer.contract.models import ModelShape
from trainer.errors import TrainerError
from trainer.export.distributed_checkpoint import DistributedCheckpoint
from trainer.export.read import load_decoder
from trainer.standalone.convert import assemble

TOKENS = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def write(folder: Path, shape: ModelShape, state: dict[str, Any], where: str = "weights") -> Path:
    """Write a checkpoint below a folder with the configuration."""
    folder.mkdir()
    config = hugging_face_config(shape, VOCABULARY, LENGTH, "float32", end_of_text=0)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    dcp.save(state, checkpoint_id=folder / where, no_dist=True)
    return folder


def check_logits(folder: Path, shape: ModelShape) -> None:
    """Compare the logits of a folder with those of the model that was saved, computed here and by transformers."""
    with torch.inference_mode():
        expected = our_model(shape)(TOKENS)
        assert torch.equal(load_decoder(folder, shape, VOCABULARY, LENGTH)(TOKENS), expected)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        torch.testing.assert_close(theirs(TOKENS).logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "prefix"), [("llama", ""), ("qwen2.5-small", "model."), ("qwen3-moe", "state.module."), ("phi3", "")]
)
def test_names_of_the_layout_are_read_under_any_prefix(family: str, prefix: str, tmp_path: Path) -> None:
    shape = SHAPES[family]
    weights = exported_state(our_model(shape))
    state: dict[str, Any] = {f"{prefix}{name}": tensor for name, tensor in weights.items()}
    state |= {"optim.state.exp_avg": torch.ones(3), "step": 7}
    made = assemble(write(tmp_path / "saved", shape, state), tmp_path / "out")
    assert made["ignored"] == ["optim.state.exp_avg"]
    assert made["precision"] == "float32"
    assert made["parameters"] == sum(tensor.numel() for tensor in weights.values())
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    check_logits(tmp_path / "out", shape)


def megatron(weights: dict[str, Tensor], shape: ModelShape, *, stacked: bool) -> dict[str, Tensor]:
    """Return the weights as a GPT model of Megatron Core has them."""
    found = {
        "embedding.word_embeddings.weight": torch.cat([weights["model.embed_tokens.weight"], torch.zeros(32, 32)]),
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
    }
    if not shape.tie_embeddings:
        found["output_layer.weight"] = torch.cat([weights["lm_head.weight"], torch.zeros(32, 32)])
    layers = []
    for number in range(shape.num_layers):
        layer = {name.split(".", 3)[3]: t for name, t in weights.items() if name.startswith(f"model.layers.{number}.")}
        made = {
            "self_attention.linear_proj.weight": layer["self_attn.o_proj.weight"],
            "self_attention.linear_qkv.layer_norm_weight": layer["input_layernorm.weight"],
            "mlp.linear_fc1.layer_norm_weight": layer["post_attention_layernorm.weight"],
            "mlp.linear_fc1.weight": torch.cat([layer["mlp.gate_proj.weight"], layer["mlp.up_proj.weight"]]),
            "mlp.linear_fc2.weight": layer["mlp.down_proj.weight"],
        }
        for kind in ("weight", "bias"):
            if f"self_attn.q_proj.{kind}" in layer:
                rows, size, ratio = [], shape.head_size, shape.num_heads // shape.num_kv_heads
                for group in range(shape.num_kv_heads):
                    rows.append(layer[f"self_attn.q_proj.{kind}"][group * ratio * size : (group + 1) * ratio * size])
                    rows += [layer[f"self_attn.{p}_proj.{kind}"][group * size : (group + 1) * size] for p in "kv"]
                made[f"self_attention.linear_qkv.{kind}"] = torch.cat(rows)
        for part in "qk":
            if f"self_attn.{part}_norm.weight" in layer:
                made[f"self_attention.{part}_layernorm.weight"] = layer[f"self_attn.{part}_norm.weight"]
        layers.append(made)
    if stacked:
        return found | {f"decoder.layers.{name}": torch.stack([each[name] for each in layers]) for name in layers[0]}
    return found | {f"decoder.layers.{n}.{name}": t for n, each in enumerate(layers) for name, t in each.items()}


@pytest.mark.parametrize(("family", "stacked"), [("llama", False), ("qwen2.5-small", True), ("qwen3", True)])
def test_names_of_megatron_core_are_read(family: str, stacked: bool, tmp_path: Path) -> None:
    shape = SHAPES[family]
    state: dict[str, Any] = dict(megatron(exported_state(our_model(shape)), shape, stacked=stacked))
    state |= {"optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight": torch.ones(3), "rng_state": [1, 2]}
    assemble(write(tmp_path / "saved", shape, state), tmp_path / "out")
    check_logits(tmp_path / "out", shape)


def test_the_precision_is_that_of_the_checkpoint(tmp_path: Path) -> None:
    weights = {name: t.bfloat16() for name, t in exported_state(our_model(SHAPES["llama"])).items()}
    made = assemble(write(tmp_path / "saved", SHAPES["llama"], dict(weights), where="."), tmp_path / "out")
    assert made["precision"] == "bfloat16"


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"model.layers.1.self_attn.rotations": torch.ones(2)},
            "model.layers.1.self_attn.rotations have no place in it",
        ),
        ({NORM: None}, f"{NORM} are missing"),
        ({NORM: torch.ones(31)}, rf"{NORM} in .* has the shape \[31\], but config.json requires \[32\]"),
        ({"model.embed_tokens.weight": None}, "exactly one tensor must end with model.embed_tokens.weight or"),
        ({"ema.model.embed_tokens.weight": torch.ones(2)}, "2 tensors end with it"),
    ],
)
def test_names_that_do_not_map_are_named_and_nothing_is_written(
    change: dict[str, Tensor | None], named: str, tmp_path: Path
) -> None:
    state = exported_state(our_model(SHAPES["llama"])) | change
    folder = write(tmp_path / "saved", SHAPES["llama"], {name: t for name, t in state.items() if t is not None})
    with pytest.raises(TrainerError, match=named):
        assemble(folder, tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


def test_another_tensor_of_megatron_is_named(tmp_path: Path) -> None:
    shape = SHAPES["llama"]
    state = megatron(exported_state(our_model(shape)), shape, stacked=False)
    state["decoder.layers.0.mlp.router.weight"] = torch.ones(4, 32)
    with pytest.raises(TrainerError, match="decoder.layers.0.mlp.router.weight, which is not mapped"):
        assemble(write(tmp_path / "saved", shape, dict(state)), tmp_path / "out")


def test_a_folder_without_or_with_two_checkpoints_is_refused(tmp_path: Path) -> None:
    shape = ModelShape(**SIZES)
    folder = write(tmp_path / "saved", shape, dict(exported_state(our_model(shape))))
    shutil.copytree(folder / "weights", folder / "older")
    with pytest.raises(TrainerError, match="older, weights are; leave one"):
        assemble(folder, tmp_path / "out")
    shutil.rmtree(folder / "older")
    shutil.rmtree(folder / "weights")
    with pytest.raises(TrainerError, match="there is none"):
        assemble(folder, tmp_path / "out")


class Attack:
    """Runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_an_index_that_would_run_code_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Attack(tmp_path / "owned")))
    with pytest.raises(TrainerError, match=r"is no index of a checkpoint: it contains posix\.mkdir"):
        DistributedCheckpoint(tmp_path)
    through = pickle.dumps(Attack(tmp_path / "owned"), protocol=4).replace(
        b"\x8c\x05posix\x94\x8c\x05mkdir", b"\x8c\x27torch.distributed.checkpoint.filesystem\x94\x8c\x08os.mkdir"
    )
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + through[11:])
    with pytest.raises(TrainerError, match=r"it contains torch\.distributed\.checkpoint\.filesystem\.os\.mkdir"):
        DistributedCheckpoint(tmp_path)
    assert not (tmp_path / "owned").exists()


def test_a_damaged_file_of_the_checkpoint_is_named(tmp_path: Path) -> None:
    shape = SHAPES["llama"]
    folder = write(tmp_path / "saved", shape, dict(exported_state(our_model(shape))))
    (data,) = (folder / "weights").glob("*.distcp")
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(TrainerError, match="cannot be read"):
        assemble(folder, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))
