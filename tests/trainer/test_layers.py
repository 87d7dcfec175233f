"""Sums over the parameters of each layer. That they are right on every mesh: `tests/trainer/equality.py`."""

import math

import pytest
import torch

from tests.trainer.equality import MODELS, Case, built
from trainer.parallel.mesh import Mesh
from trainer.reporting.layers import Layers, layer_of


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
