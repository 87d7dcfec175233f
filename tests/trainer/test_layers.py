"""Sums over the parameters of each layer. Those of gradients, on every mesh: `tests/trainer/equality.py`."""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.equality import MODELS, Case, built, my_batches, step_batch
from tests.trainer.ranks import RankPool
from tests.trainer.runs import run_alone, tiny_training
from trainer.contract.run import EndClass
from trainer.optim.step import ShardOptimizer
from trainer.parallel.full_tensors import gather_full_tensors
from trainer.parallel.mesh import Mesh, all_reduce_world
from trainer.reporting.layers import Layers, UpdateMeter, layer_of


def layers_of(model: str) -> tuple[Layers, list[str]]:
    """Return the layers of a model, and the names of its parameters."""
    model_of_rank, _ = built(Mesh(0, 1, 0, torch.device("cpu")), Case(model, 1, {}).spec())
    return Layers(model_of_rank.weights, MODELS[model]["num_layers"]), list(model_of_rank.weights.trainable)


@pytest.mark.parametrize("model", MODELS)
def test_each_parameter_belongs_to_one_layer_that_there_is(model: str) -> None:
    layers, names = layers_of(model)
    sums = layers.sums(torch.ones(len(names)))
    assert sums.tolist() == [float(sum(layer_of(name) == layer for name in names)) for layer in layers.names]
    assert sums.sum() == len(names)
    assert sums.count_nonzero() == len(layers.names) - (model == "tied")  # which has no head of its own


def test_a_value_that_is_not_finite_is_that_of_its_layer_alone() -> None:
    layers, names = layers_of("dense")
    values = torch.ones(len(names))
    values[names.index("blocks.5.mlp_norm.weight")] = math.nan
    values[names.index("embedding.weight")] = math.inf
    sums = layers.sums(values).tolist()
    assert [name for name, each in zip(layers.names, sums, strict=True) if not math.isfinite(each)] == [
        "blocks.5.mlp", "embedding",
    ]  # fmt: skip
    assert layers.largest(sums) == "not finite in blocks.5.mlp, embedding"


def test_the_text_names_the_largest_shares() -> None:
    layers, _ = layers_of("dense")
    squares = dict.fromkeys(layers.names, 0.0)
    assert layers.largest(list(squares.values())) == ""
    squares |= {"embedding": 3.0, "blocks.2.attention": 16.0}
    assert layers.largest(list(squares.values())) == "blocks.2.attention 84%, embedding 16%"
    squares |= {"head": 1.0, "norm": 80.0}
    assert layers.largest(list(squares.values())) == "norm 80%, blocks.2.attention 16%, embedding 3%"
    assert layers.largest([math.nan] * len(squares)) == "not finite in head, norm, blocks.7.mlp and 16 more"


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


def measured_update(mesh: Mesh, case: Case) -> tuple[dict[str, float], dict[str, float]]:
    """On a rank: the ratios of a step by layer, and on the first one those of the whole parameters before and after."""
    training = case.spec()
    model, part = built(mesh, training)
    optimizer = ShardOptimizer(model.weights.trainable, model.weights.layouts, training.optimizer)
    layers = Layers(model.weights, training.model.resolve().num_layers)
    meter = UpdateMeter(optimizer, layers, model.weights.mesh, 1)

    def squares(before: dict[str, np.ndarray] | None = None) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        found, sums = {}, defaultdict[str, float](float)
        for name, whole in gather_full_tensors(model.weights, lambda parameter: parameter.detach()):
            if not name.endswith(".balance"):
                found[name] = whole.double().numpy().copy()
                sums[layer_of(name)] += float(np.square(found[name] - (before[name] if before else 0.0)).sum())
        return found, sums

    batch = step_batch(packed=False)
    model.forward_backward(my_batches(batch, part), float(batch.counted))
    before, weights = squares()
    norm = all_reduce_world(optimizer.gradient_squares().sum(), mesh).sqrt()
    meter.begin(0)
    optimizer.step(1e-3, norm, norm.isfinite())
    ratios = meter.ratios()
    _, updates = squares(before)
    return ratios, {name: math.sqrt(updates[name] / weights[name]) for name in weights}


@pytest.mark.parametrize(
    "case",
    [
        Case("tied", 4, {"pipeline": 4, "micro_batch_sequences": 2}),
        Case("moe", 4, {"zero": 3, "expert": 2, "replicate": 2}),
        Case("dense", 4, {"zero": 0, "tensor": 2}, training={"optimizer": {"name": "muon"}}),
    ],
    ids=str,
)
def test_the_ratio_of_an_update_is_that_of_the_whole_parameters(pool: RankPool, case: Case) -> None:
    (first, expected), *others = pool.run(4, measured_update, case)
    assert first == pytest.approx(expected, rel=1e-4)
    assert all(ratio > 0 for ratio in first.values())
    assert all(ratios == first for ratios, _ in others)


def test_a_run_reports_its_layers_when_they_are_due(tmp_path: Path) -> None:
    training = tiny_training(steps=30, optimizer={"gradient_watch": {"layers_every_steps": 15}})
    run = run_alone(tmp_path / "run", training)
    assert run.end_class is EndClass.COMPLETED, run.end
    names = {name for point in run.points() for name in point["values"] if name.startswith("layers/")}
    layers = ["head", "norm", "embedding", *(f"blocks/{n}/{half}" for n in range(2) for half in ("attention", "mlp"))]
    figures = ("gradient_norm", "update_ratio")
    assert names == {f"layers/{layer}/{figure}" for layer in layers for figure in figures}
    assert all(list(run.series(name)) == [15, 30] for name in names)
    for step in (15, 30):
        squares = [run.series(f"layers/{layer}/gradient_norm")[step] ** 2 for layer in layers]
        assert math.sqrt(sum(squares)) == pytest.approx(run.series("train/gradient_norm")[step], rel=1e-4)
