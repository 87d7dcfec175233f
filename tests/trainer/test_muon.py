"""Muon: updates are orthogonal, equal PyTorch's, and do not depend on how matrices are spread over ranks."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.equality import Case, built, my_batches, step_batch
from tests.trainer.ranks import RankPool
from trainer.contract.optimisation import OptimizerSpec
from trainer.contract.training import TrainingSpec
from trainer.optim.orthogonal import orthogonalize
from trainer.optim.param_groups import param_group_config
from trainer.optim.step import ShardOptimizer
from trainer.parallel.full_tensors import gather_full_tensors
from trainer.parallel.layout import param_layout
from trainer.parallel.mesh import Mesh, all_reduce_world

MUON = {"optimizer": {"name": "muon", "muon": {"learning_rate": 0.01}}}


@pytest.mark.parametrize(("rows", "columns"), [(24, 24), (60, 20), (20, 60), (1, 7)])
def test_singular_values_come_near_one_and_singular_vectors_stay(rows: int, columns: int) -> None:
    matrices = (
        torch.randn(3, rows, columns, generator=torch.Generator().manual_seed(1))
        * torch.tensor([1e-4, 1.0, 1e4])[:, None, None]
    )
    found = orthogonalize(matrices, 5)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    core = left.mT @ found @ right.mT
    assert (core - torch.diag_embed(core.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-3
    torch.testing.assert_close(found[1], orthogonalize(matrices[1:2], 5)[0])
    assert not orthogonalize(torch.zeros(1, rows, columns), 5).any()


@pytest.mark.parametrize(("scale", "adjustment"), [("rms", "match_rms_adamw"), ("spectral", "original")])
@pytest.mark.parametrize("nesterov", [True, False])
def test_a_step_equals_muon_of_pytorch(scale: str, adjustment: str, nesterov: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    ours = {
        f"blocks.0.{n}.weight": torch.nn.Parameter(torch.randn(s, generator=generator))
        for n, s in enumerate([(40, 16), (16, 16)])
    }
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours.values()]
    spec = OptimizerSpec.model_validate({
        "name": "muon", "learning_rate": 3e-3, "weight_decay": 0.5, "gradient_clip": None,
        "muon": {"learning_rate": 0.02, "momentum": 0.9, "nesterov": nesterov, "scale": scale},
    })  # fmt: skip
    mesh = Mesh(0, 1, 0, torch.device("cpu"))
    optimizer = ShardOptimizer(ours, {name: param_layout(name, p, p.shape, mesh) for name, p in ours.items()}, spec)
    reference = torch.optim.Muon(
        theirs, lr=0.02, weight_decay=0.5, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjustment
    )
    for _ in range(4):
        before = [parameter.detach().clone() for parameter in theirs]
        for mine, other in zip(ours.values(), theirs, strict=True):
            mine.data.copy_(other.data)
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        norm = optimizer.gradient_squares().sum().sqrt()
        optimizer.step(3e-3, norm, norm.isfinite())
        reference.step()
        for mine, other, old in zip(ours.values(), theirs, before, strict=True):
            # PyTorch works in bfloat16, which has three digits.
            off = torch.linalg.norm(mine - other) / torch.linalg.norm(other - old)
            assert off < 0.02


def test_matrices_of_blocks_are_muons_and_all_else_is_adamws() -> None:
    model, _ = built(Mesh(0, 1, 0, torch.device("cpu")), Case("moe", 1, {}, training=MUON).spec())
    optimizer = ShardOptimizer(model.weights.trainable, model.weights.layouts, OptimizerSpec(name="muon"))
    with_momentum = {name.partition("/")[2] for name in optimizer.state_tensors() if name.startswith("momentum/")}
    with_moments = {name.partition("/")[2] for name in optimizer.state_tensors() if name.startswith("exp_avg/")}
    assert with_momentum | with_moments == set(model.weights.trainable)
    assert not with_momentum & with_moments
    assert {"blocks.1.mlp.experts.down", "blocks.0.attention.query.weight", "blocks.0.mlp.up.weight"} <= with_momentum
    assert {"blocks.1.mlp.router.weight", "embedding.weight", "head.weight", "blocks.0.mlp_norm.weight"} <= with_moments


@pytest.mark.parametrize("part", ["attention.sinks", "mlp.experts.gate_bias", "mlp.experts.down_bias"])
def test_sinks_and_biases_of_experts_are_adamws_and_not_decayed(part: str) -> None:
    """The biases of a stack of experts have two dimensions, but are no matrix."""
    group = param_group_config(f"blocks.0.{part}", 1 if part == "attention.sinks" else 2, OptimizerSpec(name="muon"))
    assert (group.algorithm, group.weight_decay) == ("adamw", 0.0)


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    with RankPool(4) as pool:
        yield pool


def train_on_rank(mesh: Mesh, case: Case, steps: int) -> dict[str, np.ndarray]:
    """Whole parameters after some steps on the same sequences."""
    training: TrainingSpec = case.spec()
    model, part = built(mesh, training)
    batch = step_batch(packed=False)
    optimizer = ShardOptimizer(model.weights.trainable, model.weights.layouts, training.optimizer)
    for _ in range(steps):
        model.forward_backward(my_batches(batch, part), float(batch.counted))
        norm = all_reduce_world(optimizer.gradient_squares().sum(), mesh).sqrt()
        optimizer.step(1e-3, norm, norm.isfinite())
        optimizer.zero_gradients()
        model.weights.sync_compute_copies()
    return {name: whole.detach().numpy().copy() for name, whole in gather_full_tensors(model.weights, lambda p: p)}


@pytest.mark.parametrize(
    ("model", "world", "parallelism"),
    [
        ("dense", 3, {"zero": 3}),
        ("dense", 4, {"zero": 1, "tensor": 2}),
        ("tied", 2, {"zero": 0}),
        ("dense", 4, {"zero": 3, "replicate": 2}),
        ("moe", 4, {"zero": 1, "expert": 2}),
        ("moe", 4, {"zero": 0, "tensor": 2}),
    ],
    ids=str,
)
def test_how_matrices_are_spread_changes_no_update(
    ranks: RankPool, model: str, world: int, parallelism: dict[str, Any]
) -> None:
    first = ranks.run(1, train_on_rank, Case(model, 1, {}, training=MUON), 0)[0]
    alone = ranks.run(1, train_on_rank, Case(model, 1, {}, training=MUON), 3)[0]
    spread = ranks.run(world, train_on_rank, Case(model, world, parallelism, training=MUON), 3)[0]
    assert spread.keys() == alone.keys()
    for name, whole in alone.items():
        if not name.endswith("balance"):
            assert np.linalg.norm(spread[name] - whole) < 2e-3 * np.linalg.norm(whole - first[name]), name
