"""Updates: equal to plain PyTorch where they are taken, and nothing at all where they are skipped."""

from typing import Any, get_args

import pytest
import torch

from tests.trainer.runs import tiny_training
from trainer.contract.cost import RankCost
from trainer.contract.models import ModelShape
from trainer.contract.optimisation import EmaSpec, OptimizerSpec, ParameterGroup
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.models.decoder import Decoder, initialise
from trainer.optim import adamw
from trainer.optim.param_groups import Algorithm, check_patterns, moments_per_parameter, param_group_config
from trainer.optim.step import ShardOptimizer
from trainer.parallel.layout import param_layout
from trainer.parallel.mesh import Mesh

SHAPE = ModelShape(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, intermediate_size=32)


def make_model() -> Decoder:
    model = Decoder(SHAPE, vocab_size=50, sequence_length=8)
    initialise(model, 3)
    return model


def optimizer_of(model: Decoder, spec: OptimizerSpec, ema: EmaSpec | None = None) -> ShardOptimizer:
    mesh = Mesh(0, 1, 0, torch.device("cpu"))
    named = dict(model.named_parameters())
    layouts = {name: param_layout(name, p, p.shape, mesh) for name, p in named.items()}
    return ShardOptimizer(named, layouts, spec, ema)


def backward(model: Decoder, seed: int, scale: float = 1.0) -> None:
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(seed))
    (model(tokens[:, :-1], tokens[:, 1:]) * scale).backward()


def take_step(model: Decoder, optimizer: ShardOptimizer) -> torch.Tensor:
    norm = optimizer.gradient_squares().sum().sqrt()
    optimizer.step(1e-2, norm, norm.isfinite())
    optimizer.zero_gradients()
    return norm


def snapshot(model: Decoder, optimizer: ShardOptimizer) -> dict[str, bytes]:
    tensors = dict(model.named_parameters()) | optimizer.state_tensors()
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


def test_a_step_equals_adamw_with_clip_grad_norm() -> None:
    ours, plain = make_model(), make_model()
    spec = OptimizerSpec(gradient_clip=0.5)
    optimizer = optimizer_of(ours, spec)
    decayed = [p for p in plain.parameters() if p.ndim > 1]
    others = [p for p in plain.parameters() if p.ndim == 1]
    reference = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=1e-2, betas=(spec.beta1, spec.beta2), eps=spec.epsilon, foreach=False,
    )  # fmt: skip
    for seed in range(5):
        backward(ours, seed)
        backward(plain, seed)
        norm = take_step(ours, optimizer)
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        reference.step()
        reference.zero_grad()
        assert norm == pytest.approx(expected.item(), rel=1e-5)
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("scale", [float("inf"), float("nan")])
def test_a_step_with_a_gradient_that_is_not_finite_changes_no_bit(name: Any, scale: float) -> None:
    model = make_model()
    optimizer = optimizer_of(model, OptimizerSpec(name=name))
    backward(model, 1)
    take_step(model, optimizer)
    before = snapshot(model, optimizer)
    backward(model, 2, scale)
    assert not take_step(model, optimizer).isfinite()
    assert snapshot(model, optimizer) == before
    backward(model, 3)
    take_step(model, optimizer)
    assert snapshot(model, optimizer) != before


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_skipped_step_leaves_no_trace_in_the_steps_after_it(name: Any) -> None:
    disturbed, plain = make_model(), make_model()
    first = optimizer_of(disturbed, OptimizerSpec(name=name))
    second = optimizer_of(plain, OptimizerSpec(name=name))
    for seed in range(3):
        backward(disturbed, seed, float("nan"))
        take_step(disturbed, first)
        for model, optimizer in ((disturbed, first), (plain, second)):
            backward(model, seed)
            take_step(model, optimizer)
    assert snapshot(disturbed, first) == snapshot(plain, second)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_offloaded_state_changes_no_bit(name: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In buckets of a few numbers, so that tensors are taken in pieces and both rooms are used again and again."""
    monkeypatch.setattr(adamw, "MAX_OFFLOAD_BUCKET_ELEMENTS", 256)
    offloaded, plain = make_model(), make_model()
    first = optimizer_of(offloaded, OptimizerSpec(name=name, offload=True))
    second = optimizer_of(plain, OptimizerSpec(name=name))
    for seed in range(4):
        for model, optimizer in ((offloaded, first), (plain, second)):
            backward(model, seed, float("nan") if seed == 2 else 1.0)
            take_step(model, optimizer)
        assert snapshot(offloaded, first) == snapshot(plain, second)


def test_norms_are_not_decayed() -> None:
    model = make_model()
    optimizer = optimizer_of(model, OptimizerSpec(weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    take_step(model, optimizer)
    assert torch.equal(model.norm.weight, torch.ones(16))
    assert model.head.weight.abs().sum() < make_model().head.weight.abs().sum()


def test_a_group_has_a_decay_and_a_rate_of_its_own() -> None:
    """Gradients of zero: what is left of a weight after a step shows its decay and rate."""
    groups = [
        {"pattern": "embedding.*", "weight_decay_factor": 0.0},
        {"pattern": "blocks.0.*.weight", "learning_rate_factor": 0.5, "weight_decay_factor": 2.0},
        {"pattern": "blocks.*", "weight_decay_factor": 7.0},
    ]
    spec = OptimizerSpec.model_validate({"weight_decay": 0.5, "groups": groups})
    model, before = make_model(), dict(make_model().named_parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    take_step(model, optimizer_of(model, spec))
    left = {"embedding.weight": 1.0, "blocks.0.mlp.up.weight": 1 - 5e-3 * 1.0, "head.weight": 1 - 1e-2 * 0.5,
            "blocks.0.mlp_norm.weight": 1 - 5e-3 * 1.0, "norm.weight": 1.0}  # fmt: skip
    found = dict(model.named_parameters())
    for name, factor in left.items():
        torch.testing.assert_close(found[name], before[name] * factor)


def test_a_pattern_that_matches_no_parameter_is_refused_with_names_that_are_near() -> None:
    names = [name for name, _ in make_model().named_parameters()]
    check_patterns([ParameterGroup(pattern="*.norm"), ParameterGroup(pattern="*")], [*names, "a.norm"])
    with pytest.raises(
        TrainerError, match=r"'blocks.0.mpl.up.weight'; similar names: blocks.0.mlp.up.weight"
    ) as refused:
        check_patterns([ParameterGroup(pattern="blocks.0.mpl.up.weight")], names)
    assert refused.value.end_class is EndClass.BAD_SPEC


@pytest.mark.parametrize("name", get_args(OptimizerSpec.model_fields["name"].annotation))
def test_every_optimizer_of_the_spec_updates_every_parameter_and_has_a_memory_estimate(name: Any) -> None:
    model, before = make_model(), dict(make_model().named_parameters())
    spec = OptimizerSpec(name=name)
    optimizer = optimizer_of(model, spec)
    backward(model, 1)
    take_step(model, optimizer)
    assert all(not torch.equal(each, before[parameter]) for parameter, each in model.named_parameters())
    algorithms = {
        param_group_config(parameter, each.ndim, spec).algorithm for parameter, each in model.named_parameters()
    }
    assert name in algorithms, f"{name} updates nothing: it falls through to another rule"
    assert algorithms <= set(get_args(Algorithm))
    moments = RankCost(tiny_training(optimizer={"name": name}), 50, MeshSizes(), 0).memory().optimizer
    assert moments > 0
    assert all(moments_per_parameter(algorithm) > 0 for algorithm in algorithms)


def test_an_optimizer_without_an_implementation_is_an_error_and_not_adamw() -> None:
    unknown = OptimizerSpec.model_construct(name="lion")
    with pytest.raises(AssertionError, match="lion"):
        param_group_config("blocks.0.mlp.up.weight", 2, unknown)
    with pytest.raises(AssertionError, match="lion"):
        param_group_config("norm.weight", 1, unknown)
    training = tiny_training().model_copy(update={"optimizer": unknown})
    with pytest.raises(AssertionError, match="lion"):
        RankCost(training, 50, MeshSizes(), 0).memory()
