"""Automatic micro-batches: as large as the device's memory allows by the estimate."""

import pytest
import torch

from tests.trainer.runs import tiny_training
from trainer.contract.cost import COMMUNICATOR_BYTES, GROUP_AXES, RankCost, num_communicators
from trainer.contract.launch_plan import micro_batch_size, plan_mesh
from trainer.contract.micro_batch import (
    MAX_MICRO_BATCH_TOKENS,
    MEMORY_SHARE,
    estimate_device_bytes,
    find_largest_micro_batch,
)
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec
from trainer.parallel.mesh import Mesh

GIB = 2**30
A10, H100, H200 = 22 * GIB, 79 * GIB, 139 * GIB  # as their drivers report


def spec(preset: str, length: int, sequences: int, vocab: int = 128_256, **fields: object) -> TrainingSpec:
    return tiny_training(**{
        "model": {"preset": preset}, "tokenizer": {"vocab_size": vocab}, "sequence_length": length,
        "tokens_per_step": sequences * length, "precision": "bf16", **fields,
    })  # fmt: skip


def mesh(training: TrainingSpec, world: int) -> MeshSizes:
    sizes = plan_mesh(training, training.tokenizer.vocab_size, world)
    assert isinstance(sizes, MeshSizes), sizes
    return sizes


def chosen(training: TrainingSpec, world: int, device_bytes: int | None) -> int:
    sizes, vocab = mesh(training, world), training.tokenizer.vocab_size
    bound = find_largest_micro_batch(training, sizes, vocab, device_bytes)
    return micro_batch_size(training, sizes, vocab, bound=bound)


CASES = [
    (spec("llama-100m", 1024, 1024, 32_000), 8),
    (spec("llama-1b", 2048, 256), 1),
    (spec("llama-1b", 8192, 512, parallelism={"zero": 3}), 8),
    (spec("llama-8b", 8192, 256, activation_checkpointing="full"), 8),
    (spec("llama-8b", 4096, 512, parallelism={"pipeline": 4}, activation_checkpointing="selective"), 16),
    (spec("llama-8b", 4096, 512, parallelism={"pipeline": 4, "pipeline_schedule": "looped_bfs"}), 32),
    (spec("llama-70b", 8192, 2048, parallelism={"tensor": 8}, activation_checkpointing="full"), 512),
]


@pytest.mark.parametrize("device_bytes", [A10, H100, H200])
@pytest.mark.parametrize(("training", "world"), CASES)
def test_no_larger_micro_batch_fits_the_share_of_the_device(
    training: TrainingSpec, world: int, device_bytes: int
) -> None:
    sizes, vocab = mesh(training, world), training.tokenizer.vocab_size
    size, room = chosen(training, world, device_bytes), MEMORY_SHARE * device_bytes
    one = estimate_device_bytes(training, sizes, vocab, 1)
    assert estimate_device_bytes(training, sizes, vocab, size) <= max(room, one)
    most = max(1, MAX_MICRO_BATCH_TOKENS * sizes.context // training.sequence_length)
    share = -(-training.batch_size_schedule.full // sizes.data)
    if sizes.pipeline > 1:
        most = min(most, max(1, share // (2 * training.parallelism.num_stages)))
    larger = {micro_batch_size(training, sizes, vocab, bound=each) for each in range(size + 1, min(share, most) + 1)}
    assert all(estimate_device_bytes(training, sizes, vocab, each) > room for each in larger - {size})


@pytest.mark.parametrize(
    "sizes",
    [
        MeshSizes(), MeshSizes(replicate=2), MeshSizes(shard=4, zero=3), MeshSizes(replicate=2, shard=2, zero=3),
        MeshSizes(shard=2, context=2, tensor=2, zero=3), MeshSizes(pipeline=2, shard=2, tensor=2, zero=1),
        MeshSizes(pipeline=4, replicate=2), MeshSizes(shard=4, expert=2, zero=3),
    ],
)  # fmt: skip
def test_buffers_of_all_communicators_of_the_mesh_are_counted(sizes: MeshSizes) -> None:
    mesh = Mesh(0, sizes.world, 0, torch.device("cpu"), sizes)
    axes = [*GROUP_AXES, *([("expert",), ("expert_shard",), ("expert_replicate",)] if sizes.expert > 1 else [])]
    groups = {tuple(mesh.peers(*each)) for each in axes} | {tuple(range(sizes.world))}
    if sizes.pipeline > 2:
        groups.add(mesh.pipeline_ends())
    used = sum(len(each) > 1 for each in groups)
    assert used <= num_communicators(sizes) <= used + (2 if sizes.expert > 1 else 0)
    training = spec("llama-1m", 256, 64, 2048, compile=False)
    memory = [RankCost(training, 2048, sizes, 0, on_gpu=each).memory() for each in (False, True)]
    assert memory[1].total - memory[0].total == num_communicators(sizes) * COMMUNICATOR_BYTES


def test_figures_of_presets_on_one_node() -> None:
    small, one_gpu, recomputing = CASES[0], CASES[1], CASES[3]
    assert [chosen(*small, each) for each in (A10, H100, H200)] == [32, 64, 64]
    assert [chosen(*one_gpu, each) for each in (A10, H100, H200)] == [1, 16, 32]
    assert [chosen(*recomputing, each) for each in (A10, H100, H200)] == [1, 8, 8]


@pytest.mark.parametrize(
    ("training", "world", "size"),
    [
        (spec("llama-1m", 256, 16, 2048, precision="fp32"), 2, 8),
        (spec("llama-1m", 256, 64, 2048, precision="fp32"), 2, 32),
        (spec("llama-10m", 512, 64, 8192, precision="fp32"), 2, 16),
    ],
)
def test_the_sizes_of_runs_on_cpus_follow_the_logits_as_before(training: TrainingSpec, world: int, size: int) -> None:
    assert chosen(training, world, None) == size


def test_the_size_that_the_spec_gives_is_not_changed_by_memory() -> None:
    training = spec("llama-1b", 2048, 256, parallelism={"micro_batch_sequences": 3})
    sizes = mesh(training, 1)
    assert find_largest_micro_batch(training, sizes, 128_256, H200) is None
    assert chosen(training, 1, H200) == 3


def test_a_size_that_ran_out_of_memory_limits_the_size_that_memory_seems_to_allow() -> None:
    training = spec("llama-1b", 2048, 256)
    sizes = mesh(training, 1)
    bound = find_largest_micro_batch(training, sizes, 128_256, H200)
    assert micro_batch_size(training, sizes, 128_256, 4, bound) == 4
