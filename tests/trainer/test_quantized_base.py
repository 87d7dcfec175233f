"""A base model with experts in MXFP4, as gpt-oss is published, is trained, and exported in the precision of the run."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.trainer.families import SHAPES
from tests.trainer.runs import run_alone, tiny_training
from trainer.contract.hugging_face import hugging_face_config
from trainer.contract.run import EndClass
from trainer.export.folder import with_base
from trainer.export.mxfp4 import GROUP, dequantize
from trainer.export.read import load_exported

VOCABULARY = 300
TOKENS = torch.arange(64).view(2, 32)


def write_quantized(folder: Path) -> None:
    """Write a tiny random model of `transformers`, with random groups of numbers in place of its experts' matrices."""
    shape = SHAPES["gpt-oss"].model_copy(update={"hidden_size": 32, "intermediate_size": 32})
    assert shape.moe is not None
    shape = shape.model_copy(update={"moe": shape.moe.model_copy(update={"expert_size": 32})})
    torch.manual_seed(3)
    config = hugging_face_config(shape, VOCABULARY, 64, "float32", end_of_text=0)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**config))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        size = (experts, rows, columns // GROUP)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*size, GROUP // 2), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.full(size, 124, dtype=torch.uint8)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["whole", "lora"])
def test_a_quantized_model_is_trained_and_exported(lora: dict[str, int] | None, tmp_path: Path) -> None:
    first = run_alone(tmp_path / "first", tiny_training(steps=4))
    base = tmp_path / "base"
    write_quantized(base)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(first.output / "model" / name, base / name)
    fields = {
        "model": {"base": str(base)}, "tokenizer": {}, "steps": 4, "schedule": {"warmup_steps": 1}, "lora": lora,
        "parallelism": {"tensor": 2, "zero": 3},
    }  # fmt: skip
    training = with_base(tiny_training(**fields), base)
    run = run_alone(tmp_path / "run", training, data=first.output.parent / "tiny.txt", processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    ours, _ = load_exported(run.output / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run.output / "model", dtype=torch.float32)
    assert type(theirs).__name__ == "GptOssForCausalLM"
    with torch.no_grad():
        assert torch.allclose(ours(TOKENS), theirs(input_ids=TOKENS).logits, atol=1e-4)
    name, stored = "model.layers.0.mlp.experts.down_proj", load_file(base / "model.safetensors")
    before = dequantize(stored[f"{name}_blocks"], stored[f"{name}_scales"]).float().mT
    after = theirs.state_dict()[name]
    assert torch.equal(before, after) == (lora is not None)
    assert torch.allclose(before, after, atol=0.1)
