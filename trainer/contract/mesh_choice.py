"""Choose the mesh of a run on accelerators by an estimate of memory and time, if `parallelism.auto` is set.

The time of a step is that of computation, of the pipeline's idle time, and of the traffic that computation does not
hide. It only ranks meshes of one spec; nothing else uses it.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from trainer.contract.cost import RankCost, Traffic
from trainer.contract.evaluation import EvaluationSettings
from trainer.contract.forward_cost import ForwardCost
from trainer.contract.launch_plan import micro_batch_size, plan_mesh
from trainer.contract.micro_batch import (
    MEMORY_SHARE,
    PROCESS_BYTES,
    estimate_device_bytes,
    find_largest_micro_batch,
    rank_cost,
)
from trainer.contract.models import ModelShape
from trainer.contract.parallelism import MeshSizes, ParallelismSpec, stage_layers
from trainer.contract.training import ProcessLayout, TrainingSpec

FLOPS_PER_SECOND = 0.5 * 989.5e12
"""Half of the dense bf16 peak of an H100 SXM (data sheet, 2023). Only its ratio to the links matters, and that of other
data centre GPUs is within a factor of two."""
NODE_BYTES_PER_SECOND = 450e9
"""Within a node: NVLink 4, one direction (H100 data sheet)."""
NETWORK_BYTES_PER_SECOND = 50e9
"""Between nodes: one port of 400 Gbit/s for each GPU (DGX H100 user guide)."""
HIDDEN_COST = 0.1
"""Share of its time that traffic still costs where computation hides it: both use the memory of the device."""
EQUAL_WITHIN = 0.03
"""Share of the time of a step by which meshes must differ for the faster one to be preferred to a simpler one or to one
that takes less memory."""
MAX_TENSOR, MAX_CONTEXT, MAX_PIPELINE = 8, 64, 32


def resolve_parallelism(
    training: TrainingSpec,
    vocab_size: int,
    layout: ProcessLayout,
    device_bytes: int | None,
    evaluation: EvaluationSettings | None = None,
) -> TrainingSpec:
    """Return the spec with the axes that `parallelism.auto` leaves open; a spec without it unchanged.

    `device_bytes`: memory of an accelerator; None on CPUs. `evaluation`: of an evaluation job, which only computes
    forward passes. Of the meshes with an estimate within MEMORY_SHARE of the memory, and with a `step_seconds` close to
    the smallest, the one that divides a sequence's computation least. On CPUs, where nothing fits, and for small
    models, the defaults.
    """
    if not training.parallelism.auto:
        return training
    plain = _with(training, auto=False)
    if device_bytes is None:
        return plain
    tasks = None if evaluation is None else evaluation.model_dump_json(include=set(EvaluationSettings.model_fields))
    chosen = _choose(plain.model_dump_json(), vocab_size, layout, device_bytes, tasks)
    return plain.model_copy(update={"parallelism": chosen})


@lru_cache(maxsize=64)
def _choose(
    training: str, vocab_size: int, layout: ProcessLayout, device_bytes: int, tasks: str | None
) -> ParallelismSpec:
    """Return the axes for a training spec, and perhaps the settings of an evaluation, as JSON."""
    plain = TrainingSpec.model_validate_json(training)
    evaluation = None if tasks is None else EvaluationSettings.model_validate_json(tasks)
    default = plan_mesh(plain, vocab_size, layout.world_size)
    if isinstance(default, MeshSizes) and default.zero == 0:
        size = find_largest_micro_batch(plain, default, vocab_size, device_bytes, evaluation) or 1
        if estimate_device_bytes(plain, default, vocab_size, size, evaluation) <= MEMORY_SHARE * device_bytes:
            return plain.parallelism  # a small model: dividing it costs more than its traffic
    for context in _powers(MAX_CONTEXT):  # more ranks for a sequence only where it does not fit on fewer
        fitting = list(_fitting(plain, vocab_size, layout, device_bytes, context, evaluation))
        if fitting:
            limit = min(each.seconds for each in fitting) * (1 + EQUAL_WITHIN)
            fast = [each for each in fitting if each.seconds <= limit]
            return min(fast, key=lambda each: (each.divisions, each.num_bytes)).parallelism
    return plain.parallelism


class _Fitting(NamedTuple):
    """A mesh that fits: estimated seconds of a step, ranks that a sequence's computation is divided over, bytes."""

    parallelism: ParallelismSpec
    seconds: float
    divisions: int
    num_bytes: int


def _fitting(
    plain: TrainingSpec, vocab_size: int, layout: ProcessLayout, device_bytes: int, context: int,
    evaluation: EvaluationSettings | None,
) -> Iterator[_Fitting]:  # fmt: skip
    for candidate in _candidates(plain, layout, context):
        sizes = plan_mesh(candidate, vocab_size, layout.world_size)
        if isinstance(sizes, list):
            continue
        if not _fits(_ends(candidate, vocab_size, sizes, 1, evaluation), device_bytes):  # most candidates end here
            continue
        size = find_largest_micro_batch(candidate, sizes, vocab_size, device_bytes, evaluation) or micro_batch_size(
            candidate, sizes, vocab_size
        )
        num_bytes = estimate_device_bytes(candidate, sizes, vocab_size, size, evaluation)
        if num_bytes <= MEMORY_SHARE * device_bytes:
            ends = _ends(candidate, vocab_size, sizes, size, evaluation)
            seconds = max(step_seconds(candidate, vocab_size, sizes, each, layout.processes_per_node) for each in ends)
            divisions = sizes.tensor * sizes.context * sizes.pipeline * sizes.expert
            yield _Fitting(candidate.parallelism, seconds, divisions, num_bytes)


def _ends(
    training: TrainingSpec, vocab_size: int, sizes: MeshSizes, micro_batch: int, evaluation: EvaluationSettings | None
) -> list[RankCost]:
    """Return the costs of the first and the last pipeline position."""
    places = {0, sizes.pipeline - 1}
    return [
        rank_cost(training, vocab_size, sizes, place, micro_batch, evaluation=evaluation, on_gpu=True)
        for place in places
    ]


def _fits(costs: list[RankCost], device_bytes: int) -> bool:
    return PROCESS_BYTES + max(each.memory().total for each in costs) <= MEMORY_SHARE * device_bytes


def step_seconds(
    training: TrainingSpec, vocab_size: int, sizes: MeshSizes, cost: RankCost, processes_per_node: int
) -> float:
    """Return the seconds of a step on the ranks of one pipeline position, with the constants of this module.

    The idle time of a pipeline is that of Narayanan et al. 2021, section 2.2, with all stages as slow as the slowest.
    """
    computes = compute_seconds(training, vocab_size, sizes.world)
    if isinstance(cost, ForwardCost):
        computes /= 3  # a backward pass has twice the products of a forward pass
    seconds = computes
    if sizes.pipeline > 1:
        seconds *= 1 + (sizes.pipeline - 1) / (cost.micro_batches * training.parallelism.num_stages_per_rank)
        seconds *= imbalance(training, vocab_size)
    hidden_behind = {
        "shard": computes if sizes.zero > 1 else 0.0,
        "replicate": computes * 2 / 3 / cost.micro_batches,  # the backward pass of the last micro-batch
        "pipeline": computes,
    }
    traffic = cost.traffic()
    for axis in sorted({each.axis for each in traffic}):
        sends = send_seconds([each for each in traffic if each.axis == axis], sizes, processes_per_node)
        seconds += max(HIDDEN_COST * sends, sends - hidden_behind.get(axis, 0.0))
    return seconds


def imbalance(training: TrainingSpec, vocab_size: int) -> float:
    """Return the computation of the slowest pipeline stage as a multiple of the mean."""
    shape, spec = training.model.resolve(), training.parallelism
    layers = [
        shape.attention_parameters() + shape.mlp_parameters(each, active=True) for each in range(shape.num_layers)
    ]
    head = vocab_size * shape.hidden_size
    stages = stage_layers(shape, vocab_size, spec.num_stages, spec.stage_layers)
    of_stages = [sum(layers[stage.start : stage.stop]) for stage in stages]
    of_stages[-1] += head
    return max(of_stages) * len(stages) / (sum(layers) + head)


def compute_seconds(training: TrainingSpec, vocab_size: int, world: int) -> float:
    """Return the seconds of a step's computation on one of `world` ranks; recomputation adds a forward pass."""
    flops = training.flops_per_token(vocab_size, causal=True) * training.tokens_per_step / world
    repeated = 0.0
    if training.activation_checkpointing == "full":
        layers = training.model.resolve().num_layers
        repeated = min(training.recompute_layers or layers, layers) / layers / 3
    return flops * (1 + repeated) / FLOPS_PER_SECOND


def send_seconds(traffic: list[Traffic], sizes: MeshSizes, processes_per_node: int) -> float:
    """Return the seconds that a rank needs to send this in a step, one after the other."""
    inner = {
        "tensor": sizes.tensor,
        "context": sizes.tensor * sizes.context,
        "expert": sizes.tensor * sizes.expert,
        "shard": sizes.tensor * sizes.context * sizes.shard,
    }
    seconds = 0.0
    for each in traffic:
        span = inner.get(each.axis, sizes.world)  # of neighbouring ranks
        is_inside = processes_per_node % span == 0 or sizes.world <= processes_per_node
        seconds += each.num_bytes / (NODE_BYTES_PER_SECOND if is_inside else NETWORK_BYTES_PER_SECOND)
    return seconds


def _candidates(plain: TrainingSpec, layout: ProcessLayout, context: int) -> Iterator[TrainingSpec]:
    """Yield specs with all meshes worth trying."""
    shape, world = plain.model.resolve(), layout.world_size
    tensors = [size for size in _powers(MAX_TENSOR) if layout.processes_per_node % size == 0]
    pipelines = _powers(min(MAX_PIPELINE, shape.num_layers))
    for tensor, pipeline, expert in product(tensors, pipelines, _expert_sizes(shape)):
        data, rest = divmod(world, tensor * context * pipeline)
        if rest:
            continue
        for zero, replicate, stages in product((0, 1, 3), _divisors(data), _stage_counts(shape, pipeline)):
            is_replicated = replicate == data
            if is_replicated != (zero == 0) and data > 1 or (zero == 3 and pipeline > 1):
                continue
            yield _with(
                plain, tensor=tensor, context=context, pipeline=pipeline, expert=expert, zero=zero, replicate=replicate,
                pipeline_schedule="interleaved_1f1b" if stages > 1 else "1f1b",
                stages_per_rank=stages if pipeline > 1 else "auto",
            )  # fmt: skip


def _with(training: TrainingSpec, **fields: object) -> TrainingSpec:
    return training.model_copy(update={"parallelism": training.parallelism.model_copy(update=fields)})


def _powers(most: int) -> list[int]:
    return [2**exponent for exponent in range(most.bit_length())]


def _divisors(number: int) -> list[int]:
    return [size for size in _powers(number) if number % size == 0] + ([number] if number & (number - 1) else [])


def _expert_sizes(shape: ModelShape) -> list[int]:
    return [1] if shape.moe is None else [size for size in _powers(64) if shape.moe.num_experts % size == 0]


def _stage_counts(shape: ModelShape, pipeline: int) -> list[int]:
    return [1] if pipeline == 1 else [count for count in (1, 2, 4) if pipeline * count <= shape.num_layers]
