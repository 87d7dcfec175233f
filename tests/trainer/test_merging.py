"""Merged models are what the formulas say, and models that do not fit together are refused by name."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from athanor.cli import merging as command
from tests.trainer.families import LENGTH, SIZES, export, our_model
from trainer.contract.data import TokenizerSpec
from trainer.contract.models import ModelShape, MoEShape
from trainer.data.tokenizer import train_tokenizer
from trainer.errors import TrainerError
from trainer.export.merging import linear, slerp, ties, trim
from trainer.export.read import load_exported
from trainer.standalone.merge import Merging, merge

SHAPE = ModelShape(**SIZES)
MIXTURE = ModelShape(**SIZES, moe=MoEShape(num_experts=4, experts_per_token=2, expert_size=16))
VOCABULARY = 300
WORDS = ["the gold of the lead", "mercury and sulphur, salt"]


def random(seed: int, *size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def write_model(folder: Path, seed: int, shape: ModelShape = SHAPE) -> Path:
    """Write a model with random weights of its own, and a tokenizer."""
    torch.manual_seed(seed)
    model = our_model(shape, VOCABULARY)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.02 * random(1000 * seed + number, *parameter.shape).float()
    export(model, folder)
    train_tokenizer(WORDS, TokenizerSpec(vocab_size=280)).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("one", "two", "base")):
        write_model(folder / name, seed)
    return folder


@pytest.fixture
def models(made: Path, tmp_path: Path) -> list[Path]:
    return [shutil.copytree(made / name, tmp_path / name) for name in ("one", "two", "base")]


def weights_of(folder: Path) -> dict[str, Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def test_linear_is_the_weighted_mean() -> None:
    tensors, weights = [random(seed, 5, 7) for seed in range(3)], [1.0, 2.0, 5.0]
    expected = np.average([each.numpy() for each in tensors], axis=0, weights=weights)
    np.testing.assert_allclose(linear(tensors, weights), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", [[1.0, 1.0], [3.0, 1.0]])
def test_slerp_is_the_formula_and_stays_on_the_arc(weights: list[float]) -> None:
    one, other = random(1, 4, 6), random(2, 4, 6)
    share = weights[1] / sum(weights)
    angle = math.acos(float((one * other).sum() / (one.norm() * other.norm())))
    expected = (math.sin((1 - share) * angle) * one + math.sin(share * angle) * other) / math.sin(angle)
    torch.testing.assert_close(slerp(one, other, weights).double(), expected, rtol=1e-5, atol=1e-6)
    other *= one.norm() / other.norm()  # of vectors of equal length, all between have this length
    assert float(slerp(one, other, weights).norm()) == pytest.approx(float(one.norm()), rel=1e-5)


@pytest.mark.parametrize("factor", [1.0, 2.0, -1.0, 0.0])
def test_slerp_of_tensors_without_a_plane_is_linear(factor: float) -> None:
    one = random(1, 4, 6)
    found = slerp(one, factor * one, [1.0, 3.0])
    torch.testing.assert_close(found.double(), one * (0.25 + 0.75 * factor), rtol=1e-5, atol=1e-6)


def test_ties_trims_elects_and_averages_as_by_hand() -> None:
    base = torch.ones(5)
    one = base + torch.tensor([4, -3, 1, 0, 2]) / 8
    two = base + torch.tensor([2, 5, -2, 3, 0]) / 8
    # The three largest of each; the fourth of the second one is as large as its third.
    assert (8 * trim(one - base, 0.6)).tolist() == [4, -3, 0, 0, 2]
    assert (8 * trim(two - base, 0.6)).tolist() == [2, 5, -2, 3, 0]
    found = ties(base, [one, two], [1.0, 1.0], 0.6, 1.0)
    torch.testing.assert_close(found, base + torch.tensor([3, 5, -2, 3, 2]) / 8)
    heavier = ties(base, [one, two], [3.0, 1.0], 0.6, 2.0)
    torch.testing.assert_close(heavier, base + 2 * torch.tensor([3.5, -3, -2, 3, 2]) / 8)


def test_ties_with_full_density_and_equal_signs_is_the_mean() -> None:
    base = torch.zeros(30)
    tensors = [random(seed, 30).float().abs() for seed in range(3)]
    torch.testing.assert_close(ties(base, tensors, [1.0] * 3, 1.0, 1.0), torch.stack(tensors).mean(0))


@pytest.mark.parametrize("density", [0.01, 0.2, 0.5, 0.99])
def test_trim_retains_the_largest(density: float) -> None:
    difference = random(3, 20, 5)
    found = trim(difference, density)
    retained = found != 0
    assert int(retained.sum()) == max(1, round(100 * density))
    assert float(difference[retained].abs().min()) >= float(difference[~retained].abs().max())
    assert torch.equal(found[retained], difference[retained])


@pytest.mark.parametrize("method", ["linear", "slerp", "ties"])
def test_a_merged_folder_has_the_merged_tensors_and_loads(method: str, models: list[Path], tmp_path: Path) -> None:
    one, two, base = models
    merging = Merging(method, [3.0, 1.0], base if method == "ties" else None, density=0.5, scale=0.8)
    made = merge([one, two], tmp_path / "out", merging)
    found, (first, second, start) = weights_of(tmp_path / "out"), map(weights_of, models)
    assert found.keys() == first.keys()
    for name, tensor in found.items():
        if method == "ties":
            expected = ties(start[name], [first[name], second[name]], [3.0, 1.0], 0.5, 0.8)
        else:
            merged = slerp(first[name], second[name], [3.0, 1.0])
            expected = merged if method == "slerp" else linear([first[name], second[name]], [3.0, 1.0])
        torch.testing.assert_close(tensor, expected.to(tensor.dtype))
        assert tensor.dtype == first[name].dtype
    assert (made["method"], made["precision"]) == (method, "float32")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (one / "tokenizer.json").read_bytes()
    tokens = torch.arange(LENGTH)[None]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.inference_mode():
        ours = load_exported(tmp_path / "out")[0].float()(tokens)
        torch.testing.assert_close(ours, theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_a_model_merged_with_itself_is_itself(tmp_path: Path) -> None:
    one = write_model(tmp_path / "one", 1, MIXTURE)
    merge([one, one, one], tmp_path / "out", Merging("linear", [1.0] * 3))
    found = weights_of(tmp_path / "out")
    for name, tensor in weights_of(one).items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-7)


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda two: shutil.rmtree(two) or write_model(two, 1, ModelShape(**{**SIZES, "num_layers": 1})),
         "one and {two} have num_layers 3 and 1; merge models that were trained from the same base"),
        (lambda two: edit_config(two, model_type="qwen2"), "have model_type llama and qwen2"),
        (lambda two: edit_config(two, vocab_size=301), "have vocab_size 300 and 301"),
        (lambda two: edit_config(two, quantization_config={}), "two is quantized; merge the models that it was made"),
        (lambda two: train_tokenizer(["a b c d"], TokenizerSpec(vocab_size=280)).save(str(two / "tokenizer.json")),
         "have different tokenizers (tokenizer.json)"),
        (lambda two: (two / "tokenizer.json").unlink(), "two has no readable tokenizer.json"),
        (lambda two: (two / "config.json").unlink(), "two has no config.json"),
        (lambda two: save_file({name: each * math.nan for name, each in weights_of(two).items()},
                               two / "model.safetensors"), "has values that are not finite"),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_together_are_refused_by_name(
    change: Any, problem: str, models: list[Path], tmp_path: Path
) -> None:
    one, two, _ = models
    change(two)
    with pytest.raises(TrainerError) as refused:
        merge([one, two], tmp_path / "out", Merging("linear", [1.0, 1.0]))
    assert problem.format(two=two) in str(refused.value)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize(
    ("count", "settings", "problem"),
    [
        (1, {"method": "linear"}, "linear merges at least two models, and 1 are given"),
        (3, {"method": "slerp"}, "slerp merges exactly two models, and 3 are given; use linear for more"),
        (2, {"method": "linear", "weights": [1.0]}, "1 weights are given for 2 models; give one for each, or none"),
        (2, {"method": "linear", "weights": [1.0, 0.0]}, "the weight 0 is not above 0; leave a model out"),
        (2, {"method": "linear", "weights": [1.0, math.inf]}, "the weight inf is not above 0"),
        (2, {"method": "ties"}, "ties needs --base, the folder of the model that all others were trained from"),
        (2, {"method": "slerp", "base": Path("base")}, "--base belongs to ties, and the method is slerp; leave it out"),
        (2, {"method": "ties", "base": Path("base"), "density": 0.0}, "the density 0 is not above 0 and at most 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(count: int, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(TrainerError) as refused:
        Merging(**{"weights": [1.0] * count, **settings}).check(count)
    assert problem in str(refused.value)


@pytest.mark.processes
def test_the_command_merges_and_reports(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, base = models
    command.merge([one, two], tmp_path / "out", command.Method.TIES, [2.0, 1.0], base, 0.3)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{tmp_path / 'out'}: " in shown and "parameters, float32" in shown
    assert "the result is not signed; the signatures of the sources were not verified" in shown
    merge([one, two], tmp_path / "again", Merging("ties", [2.0, 1.0], base, 0.3))
    found, expected = weights_of(tmp_path / "out"), weights_of(tmp_path / "again")
    assert all(torch.equal(each, expected[name]) for name, each in found.items())
    with pytest.raises(TrainerError, match="again exists: choose another name"):
        merge([one, two], tmp_path / "again", Merging("linear", [1.0, 1.0]))
