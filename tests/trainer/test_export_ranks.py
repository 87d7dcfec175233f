"""Weights that all ranks of a mesh write: each tensor once, in files of bounded size, and the model is as it was."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.families import LENGTH, SHAPES, TOKENS, VOCABULARY, export, exported_state, our_model
from tests.trainer.ranks import RankPool
from tests.trainer.runs import tiny_training
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.models import ModelShape
from trainer.contract.optimisation import LoraSpec
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec
from trainer.export.read import StoredWeights, load_decoder
from trainer.export.write import INDEX_NAME, WeightsWriter, file_name, split_tensors, write_index
from trainer.models.decoder import Decoder
from trainer.models.lora import add_adapters, is_adapter
from trainer.parallel.layout import ParamLayout
from trainer.parallel.mesh import Mesh
from trainer.parallel.parallelize import parallelize_model

LARGEST_BYTES = 20_000


def training_of(
    shape: ModelShape, parallelism: dict[str, Any], base: str | None = None, lora: LoraSpec | None = None
) -> TrainingSpec:
    return tiny_training(
        model={"shape": shape.model_dump(), "base": base}, parallelism=parallelism, sequence_length=LENGTH,
        tokens_per_step=8 * LENGTH, lora=None if lora is None else lora.model_dump(),
        **({} if base is None else {"tokenizer": {"kind": "model", "vocab_size": 300}}),
    )  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as started:
        yield started


def adapter_value(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape).normal_(0, 0.3, generator=torch.Generator().manual_seed(len(name)))


def write_on_rank(mesh: Mesh, training: TrainingSpec, folder: Path, dtype: torch.dtype) -> list[str]:
    """On a rank: read the model in `folder` and write it to `folder/written`. Return the files that it wrote."""
    sizes = plan_mesh(training, VOCABULARY, mesh.world_size)
    assert isinstance(sizes, MeshSizes), sizes
    shape, mesh = training.model.resolve(), mesh.with_sizes(sizes)
    stored = StoredWeights(folder, shape)

    def value(place: ParamLayout) -> torch.Tensor:
        if is_adapter(place.name):
            return place.local_view(adapter_value(place.name, place.shape))
        return stored.part_of(place)

    model = parallelize_model(training, VOCABULARY, mesh, 1, load_shard=value)
    for name, bias in model.weights.expert_biases.items():
        bias.copy_(stored.whole(name, tuple(bias.shape)))
    mine: list[str] = []
    writer = WeightsWriter(
        model.weights, shape, dtype, processes_per_node=2, largest_bytes=LARGEST_BYTES,
        adapter_scale=None if training.lora is None else training.lora.scale,
    )  # fmt: skip
    written = writer.write(folder / "written", mesh.open_store("export/"), lambda path: mine.append(path.name))
    if mesh.rank == 0:
        write_index(folder / "written", [each.tensors for each in written])
    return mine


@pytest.mark.parametrize(
    ("name", "parallelism", "dtype"),
    [
        ("llama", {"zero": 3}, torch.float32),
        ("qwen2", {"tensor": 2, "zero": 1}, torch.bfloat16),
        ("llama-3.1", {"pipeline": 2, "zero": 0}, torch.float32),
        ("phi3", {"tensor": 2, "zero": 3}, torch.bfloat16),
        ("qwen3-moe", {"pipeline": 2, "tensor": 2}, torch.bfloat16),
        ("glm-4.6", {"expert": 2, "zero": 3}, torch.bfloat16),
    ],
    ids=str,
)
def test_the_ranks_write_the_model_between_them(
    name: str, parallelism: dict[str, Any], dtype: torch.dtype, pool: RankPool, tmp_path: Path
) -> None:
    model = our_model(SHAPES[name])
    export(model, tmp_path)
    training = training_of(SHAPES[name], parallelism)
    per_rank = pool.run(4, write_on_rank, training, tmp_path, dtype)
    assert all(per_rank), per_rank  # every rank has written
    index = json.loads((tmp_path / "written" / INDEX_NAME).read_text())
    files = sorted(file for mine in per_rank for file in mine)
    assert files == sorted(set(index["weight_map"].values()))
    found: dict[str, torch.Tensor] = {}
    for file in files:
        tensors = load_file(tmp_path / "written" / file)
        assert set(tensors) == {each for each, where in index["weight_map"].items() if where == file}
        assert sum(each.nbytes for each in tensors.values()) <= LARGEST_BYTES or len(tensors) == 1
        found |= tensors
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in found.values())
    expected = exported_state(model)
    assert found.keys() == expected.keys()
    for theirs, tensor in found.items():
        assert tensor.dtype == (torch.float32 if "correction_bias" in theirs else dtype)
        assert torch.equal(tensor, expected[theirs].to(tensor.dtype)), theirs


@pytest.mark.parametrize("name", ["qwen2", "phi3"])
def test_the_ranks_merge_adapters(name: str, pool: RankPool, tmp_path: Path) -> None:
    shape = SHAPES[name]
    model = our_model(shape)
    export(model, tmp_path)
    lora = LoraSpec(rank=2, alpha=6.0, targets=["query", "down"])
    training = training_of(shape, {"pipeline": 2, "tensor": 2}, str(tmp_path), lora)
    pool.run(4, write_on_rank, training, tmp_path, torch.float32)
    adapted = Decoder(shape, VOCABULARY, LENGTH)
    adapted.load_state_dict(model.state_dict())
    add_adapters(adapted, lora)
    with torch.no_grad():
        for own, parameter in adapted.named_parameters():
            if is_adapter(own):
                parameter.copy_(adapter_value(own, tuple(parameter.shape)))
        merged = load_decoder(tmp_path / "written", shape, VOCABULARY, LENGTH)
        torch.testing.assert_close(merged(TOKENS), adapted(TOKENS), rtol=1e-4, atol=1e-4)
        assert (merged(TOKENS) - model(TOKENS)).abs().max() > 0.1


def test_a_file_that_cannot_be_stored_ends_the_export(pool: RankPool, tmp_path: Path) -> None:
    export(our_model(SHAPES["llama"]), tmp_path)
    (tmp_path / "written").write_text("a file where the folder should be")
    with pytest.raises(RuntimeError, match="FileExistsError"):
        pool.run(4, write_on_rank, training_of(SHAPES["llama"], {"zero": 3}), tmp_path, torch.float32)


def test_files_are_filled_in_order_and_one_alone_needs_no_index(tmp_path: Path) -> None:
    sizes = [("a", 40), ("b", 40), ("c", 40), ("large", 200), ("d", 90), ("e", 1)]
    assert [list(each) for each in split_tensors(sizes, 90)] == [["a", "b"], ["c"], ["large"], ["d"], ["e"]]
    assert [list(each) for each in split_tensors(sizes, 1000)] == [["a", "b", "c", "large", "d", "e"]]
    assert file_name(0, 1) == "model.safetensors"
    assert file_name(1, 12) == "model-00002-of-00012.safetensors"
    write_index(tmp_path, split_tensors(sizes, 1000))
    assert not list(tmp_path.iterdir())
