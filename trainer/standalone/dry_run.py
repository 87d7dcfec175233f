"""Estimate mesh, memory and traffic of a job without training.

The code that parallelizes the model runs with fake process groups and parameters without storage, once for each
pipeline rank.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trainer.contract.cost import RankCost
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.mesh_choice import resolve_parallelism
from trainer.contract.micro_batch import find_largest_micro_batch
from trainer.contract.optimisation import CompressionSpec
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.contract.training import ProcessLayout, TrainingSpec
from trainer.errors import TrainerError
from trainer.optim.param_groups import moments_per_parameter, param_group_config
from trainer.parallel.data import local_tensor
from trainer.parallel.mesh import Mesh, leave
from trainer.parallel.parallelize import ParallelModel, parallelize_model
from trainer.training.device import BF16_CAPABILITY


@dataclass(frozen=True)
class StateBytes:
    """Bytes of the state of one rank, counted from the shards that the parallelized model has."""

    parameters: int
    weights: int
    gradients: int
    optimizer: int


def dry_run(training: TrainingSpec, layout: ProcessLayout, device_bytes: int | None = None) -> Iterator[str]:
    """Yield the lines to print for the processes of `layout`. Raises TrainerError (BAD_SPEC) that names every problem
    of an invalid mesh.

    `device_bytes`: memory of the GPU, with bf16, of each process. Without it, what is `auto` is as on this machine.
    """
    on_gpu = device_bytes is not None
    this_has_bf16 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= BF16_CAPABILITY
    training = training.with_precision(has_bf16=on_gpu or this_has_bf16)
    vocab_size, ranks = training.tokenizer.vocab_size, layout.world_size
    training = resolve_parallelism(training, vocab_size, layout, device_bytes)
    sizes = plan_mesh(training, vocab_size, ranks)
    if isinstance(sizes, list):
        problems = [f"training.{each.field.replace('/', '.')}: {each.message}" for each in sizes]
        raise TrainerError(EndClass.BAD_SPEC, "\n".join(problems))
    micro_batch = find_largest_micro_batch(training, sizes, vocab_size, device_bytes)
    costs = [RankCost(training, vocab_size, sizes, each, micro_batch, on_gpu=on_gpu) for each in range(sizes.pipeline)]
    shape, first = training.model.resolve(), costs[0]
    axes = " x ".join(f"{name} {size}" for name, size in sizes.named.items())
    tokens = training.tokens_per_step
    yield f"mesh: {ranks} ranks = {axes}; expert {sizes.expert}, zero {sizes.zero}"
    yield f"model: {shape.num_parameters(vocab_size):,} parameters, vocabulary {vocab_size:,}, {training.precision}"
    yield (
        f"step: {tokens:,} tokens in {first.micro_batches} micro-batches of {first.micro_batch} x "
        f"{training.sequence_length} tokens on each of {sizes.data} data ranks"
    )
    flops = training.flops_per_token(vocab_size, causal=True) * tokens / ranks
    yield f"computation: {flops / 1e12:,.3f} TFLOP per rank and step"
    for place, cost in enumerate(costs):
        yield from _lines_of_rank(
            place, cost, state_bytes(training, vocab_size, sizes, place * (ranks // sizes.pipeline))
        )


def state_bytes(training: TrainingSpec, vocab_size: int, sizes: MeshSizes, rank: int) -> StateBytes:
    """Return the bytes that `rank` of this mesh holds between steps, gradients included."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415 - registers a backend

    plain = training.parallelism.model_copy(update={"compression": CompressionSpec()})  # error feedback is not counted
    training = training.model_copy(update={"parallelism": plain})
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=sizes.world)
    model: ParallelModel | None = None
    try:
        mesh = Mesh(rank, sizes.world, 0, torch.device("cpu"), sizes)
        mesh.param_device = torch.device("meta")
        model = parallelize_model(
            training, vocab_size, mesh, 1, load_shard=lambda place: torch.empty(place.local_shape, device="meta")
        )
        return bytes_of(model, training)
    finally:
        model = None
        leave()


def bytes_of(model: ParallelModel, training: TrainingSpec) -> StateBytes:
    """Return the bytes of a rank's weights, gradients and optimizer state."""
    weights = model.weights
    moments = trained = 0
    for name, parameter in weights.trainable.items():
        place, numbers = weights.layouts[name], local_tensor(parameter).numel()
        algorithm = param_group_config(place.name, len(place.shape), training.optimizer).algorithm
        trained += numbers
        moments += numbers * moments_per_parameter(algorithm)
    every = [local_tensor(parameter) for parameter in weights.all_params.values()]
    quantized = weights.quantized.values()
    return StateBytes(
        parameters=sum(each.numel() for each in every) + sum(math.prod(each.shape) for each in quantized),
        weights=sum(each.nbytes for each in every) + sum(each.packed.nbytes + each.scales.nbytes for each in quantized),
        gradients=4 * trained,
        optimizer=4 * moments,
    )


def _lines_of_rank(place: int, cost: RankCost, state: StateBytes) -> Iterator[str]:
    stages = "; ".join(
        f"stage {number}: layers {layers.start} to {layers.stop - 1}" for number, layers in cost.stages.items()
    )
    ends = [name for name, is_here in (("embedding", cost.has_embedding), ("head", cost.has_head)) if is_here]
    yield f"ranks at place {place} of the pipeline ({', '.join([stages, *ends])}):"
    memory = cost.memory()
    waiting = max(0, memory.gradients - state.gradients)
    on_device = memory.optimizer if memory.host else state.optimizer
    total = state.weights + state.gradients + on_device + waiting
    total += memory.gathered + memory.activations + memory.logits + memory.communicators + memory.reference
    total += memory.average
    yield (
        f"  state: {state.parameters:,} parameters; weights {format_bytes(state.weights)}, gradients "
        f"{format_bytes(state.gradients)}, optimiser {format_bytes(state.optimizer)}"
        f"{f' in host memory, of which {format_bytes(on_device)} at a time on the device' if memory.host else ''}"
        f"{f', average of the weights {format_bytes(memory.average)}' if memory.average else ''}"
    )
    yield (
        f"  besides, about: gathered weights {format_bytes(memory.gathered)}, gradients of earlier micro-batches "
        f"{format_bytes(waiting)}, activations {format_bytes(memory.activations)}, logits {format_bytes(memory.logits)}"
        f"{f', buffers of NCCL {format_bytes(memory.communicators)}' if memory.communicators else ''}"
        f"{f', reference model {format_bytes(memory.reference)}' if memory.reference else ''}"
    )
    yield f"  memory: about {format_bytes(total)}"
    for each in cost.traffic():
        yield f"  sends along {each.axis}: {format_bytes(each.num_bytes)} per step ({each.operation})"


def format_bytes(num_bytes: int) -> str:
    """Return the size with the largest binary unit, up to TiB, in which it is at least 1."""
    size, units = float(num_bytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.2f} {units[0]}"
