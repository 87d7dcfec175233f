"""The mesh that `parallelism.auto` chooses: it fits, and no rank sends for longer than it computes."""

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.contract import mesh_choice, micro_batch
from trainer.contract.cost import RankCost
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.mesh_choice import (
    compute_seconds,
    imbalance,
    resolve_parallelism,
    send_seconds,
    step_seconds,
)
from trainer.contract.micro_batch import MEMORY_SHARE, estimate_device_bytes, find_largest_micro_batch
from trainer.contract.models import ModelShape
from trainer.contract.parallelism import MeshSizes, ParallelismSpec, stage_layers
from trainer.contract.training import ProcessLayout, TrainingSpec

H100, H200 = 80 * 2**30, 141 * 10**9
VOCABULARY = 128_256
DENSE = {"hidden_size": 1024, "num_layers": 12, "num_heads": 16, "num_kv_heads": 8, "intermediate_size": 4096}
MIXTURE = {**DENSE, "moe": {"num_experts": 64, "experts_per_token": 4, "expert_size": 2048}}


def training(model: dict[str, Any], **fields: Any) -> TrainingSpec:
    return TrainingSpec.model_validate(
        {
            "model": model, "data": {"source": "builtin:python-stdlib"}, "tokenizer": {"vocab_size": VOCABULARY},
            "steps": 10, "tokens_per_step": 2**23, "sequence_length": 8192, "precision": "bf16",
            "parallelism": {"auto": True}, **fields,
        }
    )  # fmt: skip


def chosen(spec: TrainingSpec, nodes: int, device_bytes: int | None = H100) -> tuple[TrainingSpec, MeshSizes]:
    """Return the resolved spec and its mesh on nodes of 8 processes."""
    resolved = resolve_parallelism(spec, VOCABULARY, ProcessLayout(nodes=nodes, processes_per_node=8), device_bytes)
    sizes = plan_mesh(resolved, VOCABULARY, 8 * nodes)
    assert isinstance(sizes, MeshSizes), sizes
    return resolved, sizes


@pytest.mark.parametrize(
    ("axes", "world", "zero"),
    [
        ({}, 1, 0),
        ({}, 2, 3),
        ({"tensor": 4}, 4, 0),
        ({"pipeline": 2}, 2, 0),
        ({"context": 2}, 2, 3),
        ({"zero": 3}, 1, 3),
    ],
)
def test_a_large_model_is_sharded_only_by_several_data_ranks(axes: dict[str, Any], world: int, zero: int) -> None:
    sizes = plan_mesh(training({"preset": "llama-8b"}, parallelism=axes), VOCABULARY, world)
    assert isinstance(sizes, MeshSizes), sizes
    assert sizes.zero == zero


@pytest.mark.parametrize(
    ("spec", "nodes"),
    [
        (training({"preset": "llama-100m"}), 1),
        (training({"preset": "llama-1b"}), 2),
        (training({"preset": "llama-8b"}), 8),
        (training({"preset": "llama-8b"}, compile=True), 5),
        (training({"preset": "llama-70b"}, activation_checkpointing="selective"), 64),
        (training({"preset": "llama-8b"}, sequence_length=2**17, activation_checkpointing="full"), 8),
        (training({"shape": MIXTURE}), 4),
    ],
)
def test_the_chosen_mesh_fits_and_computes_for_longer_than_it_sends(spec: TrainingSpec, nodes: int) -> None:
    resolved, sizes = chosen(spec, nodes)
    assert not resolved.parallelism.auto
    assert 8 % sizes.tensor == 0, "within a node"
    size = find_largest_micro_batch(resolved, sizes, VOCABULARY, H100)
    assert size is not None
    assert estimate_device_bytes(resolved, sizes, VOCABULARY, size) <= MEMORY_SHARE * H100
    for place in range(sizes.pipeline):
        traffic = RankCost(resolved, VOCABULARY, sizes, place, size, on_gpu=True).traffic()
        assert send_seconds(traffic, sizes, 8) <= compute_seconds(resolved, VOCABULARY, sizes.world)


def test_the_table_of_the_guide_has_what_is_chosen() -> None:
    """Each row: preset, GPUs, tokens of a step, mesh, memory, and the estimated seconds."""
    page = Path(__file__).parents[2] / "docs/how-to/scale-a-run.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("| llama-") and " Mi | " in line]
    assert len(lines) == 4
    for line in lines:
        preset, gpus, tokens = (cell.strip().replace(",", "") for cell in line.split("|")[1:4])
        step = int(tokens.removesuffix(" Mi")) * 2**20
        spec = training({"preset": preset}, tokens_per_step=step, activation_checkpointing="selective")
        resolved, sizes = chosen(spec, int(gpus) // 8)
        size = find_largest_micro_batch(resolved, sizes, VOCABULARY, H100)
        assert size is not None
        cost = RankCost(resolved, VOCABULARY, sizes, 0, size, on_gpu=True)
        axes = [f"{axis} {count}" for axis, count in sizes.named.items() if count > 1]
        axes = [f"{axis} (ZeRO {sizes.zero})" if axis.startswith("shard") else axis for axis in axes]
        memory = estimate_device_bytes(resolved, sizes, VOCABULARY, size) / 2**30
        seconds = (
            compute_seconds(resolved, VOCABULARY, sizes.world), send_seconds(cost.traffic(), sizes, 8),
            step_seconds(resolved, VOCABULARY, sizes, cost, 8),
        )  # fmt: skip
        facts = f"{' x '.join(axes)} | {memory:.0f} GiB | {', '.join(f'{each:.1f} s' for each in seconds)} |"
        assert line.endswith(f"| {facts}"), f"{preset}: {facts}"


def test_a_small_model_is_replicated() -> None:
    _, sizes = chosen(training({"preset": "llama-1m"}), 2)
    assert sizes == MeshSizes(replicate=16)


def test_a_large_model_on_a_slow_network_is_not_only_sharded() -> None:
    spec = training({"preset": "llama-70b"}, activation_checkpointing="selective")
    resolved, sizes = chosen(spec, 64)
    plain = spec.model_copy(update={"parallelism": ParallelismSpec()})
    sharded = plan_mesh(plain, VOCABULARY, 512)
    assert isinstance(sharded, MeshSizes) and sharded.shard == 512
    seconds = {
        name: step_seconds(of, VOCABULARY, mesh, RankCost(of, VOCABULARY, mesh, 0, 1, on_gpu=True), 8)
        for name, of, mesh in (("chosen", resolved, sizes), ("sharded", plain, sharded))
    }
    assert seconds["chosen"] < 0.9 * seconds["sharded"], seconds


def test_context_ranks_are_taken_only_where_a_sequence_does_not_fit() -> None:
    short, long = (
        chosen(training({"preset": "llama-8b"}, sequence_length=length, activation_checkpointing="full"), 8)[1]
        for length in (8192, 2**20)
    )
    assert (short.context, long.context > 1) == (1, True)


def test_more_memory_needs_no_slower_mesh() -> None:
    spec = training({"preset": "llama-70b"}, activation_checkpointing="selective")
    times = []
    for device_bytes in (H100, H200):
        resolved, sizes = chosen(spec, 64, device_bytes)
        size = find_largest_micro_batch(resolved, sizes, VOCABULARY, device_bytes)
        cost = RankCost(resolved, VOCABULARY, sizes, 0, size, on_gpu=True)
        times.append(step_seconds(resolved, VOCABULARY, sizes, cost, 8))
    assert times[1] <= times[0] * 1.03


def test_without_accelerators_and_where_nothing_fits_the_axes_keep_their_defaults() -> None:
    assert chosen(training({"preset": "llama-8b"}), 1, None)[0].parallelism == ParallelismSpec()
    assert chosen(training({"preset": "llama-405b"}), 1)[0].parallelism == ParallelismSpec()


def test_what_the_spec_gives_beside_the_axes_stays() -> None:
    resolved, _ = chosen(training({"preset": "llama-1b"}, parallelism={"auto": True, "micro_batch_sequences": 2}), 1)
    assert resolved.parallelism.micro_batch_sequences == 2
    given = training({"preset": "llama-1b"}, parallelism={"tensor": 2})
    assert resolve_parallelism(given, VOCABULARY, ProcessLayout(processes_per_node=8), H100) is given


@pytest.mark.parametrize("field", [{"tensor": 2}, {"zero": 3}, {"data": 4}, {"pipeline_schedule": "gpipe"}])
def test_axes_beside_auto_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=f"parallelism auto chooses {next(iter(field))}; leave it out, or auto"):
        training({"preset": "llama-1b"}, parallelism={"auto": True, **field})
    training({"preset": "llama-1b"}, parallelism={"auto": True})
    training({"preset": "llama-1b"}, parallelism=field)


def test_the_slowest_stage_counts_for_all() -> None:
    even = training({"preset": "llama-8b"}, parallelism={"pipeline": 2, "stage_layers": [16, 16]})
    uneven = training({"preset": "llama-8b"}, parallelism={"pipeline": 2, "stage_layers": [8, 24]})
    assert 1 < imbalance(even, VOCABULARY) < 1.1, "the head is in the last stage"
    assert 1.45 < imbalance(uneven, VOCABULARY) < 1.6


def test_a_search_of_many_meshes_evaluates_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to the platform waits for the search: a user who may plan jobs could keep its processes busy."""
    evaluated = []

    class Counted(RankCost):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            evaluated.append(arguments)
            super().__init__(*arguments, **options)

    for module in (mesh_choice, micro_batch):
        monkeypatch.setattr(module, "RankCost", Counted)
    experts = {"num_experts": 256, "experts_per_token": 8, "expert_size": 2048}
    chosen(training({"shape": {**DENSE, "num_layers": 200, "moe": experts}}, seed=2), 1024)
    assert 0 < len(evaluated) < 20_000, "400,000 before those that cannot fit were left out first"


@given(layers=st.integers(1, 9), stages=st.integers(1, 9), vocab_size=st.integers(10, 100_000), dense=st.integers(0, 8))
def test_stages_are_the_fastest_split_and_of_those_the_smallest(
    layers: int, stages: int, vocab_size: int, dense: int
) -> None:
    assume(stages <= layers)
    moe = {"num_experts": 8, "experts_per_token": 2, "expert_size": 96, "first_dense_layers": min(dense, layers - 1)}
    shape = ModelShape.model_validate({**DENSE, "hidden_size": 64, "num_layers": layers, "moe": moe})
    words = vocab_size * shape.hidden_size

    def rank(split: list[range]) -> tuple[int, int]:
        computation, parameters = [], []
        for stage in split:
            is_last, is_first = stage.stop == layers, stage.start == 0
            products = sum(shape.attention_parameters() + shape.mlp_parameters(each, active=True) for each in stage)
            computation.append(products + words * is_last)
            parameters.append(sum(map(shape.layer_parameters, stage)) + words * (is_first + is_last))
        return max(computation), max(parameters)

    splits = []
    for cuts in combinations(range(1, layers), stages - 1):
        bounds = [0, *cuts, layers]
        splits.append([range(low, high) for low, high in pairwise(bounds)])
    assert rank(stage_layers(shape, vocab_size, stages, None)) == min(map(rank, splits))
