"""Parallelism of a run: the fields of the spec, the mesh that results from them, and the problems of a mesh.

The mesh is pipeline x replicate x shard x context x tensor, the innermost axis over neighbouring ranks. Expert
parallelism has no ranks of its own: it divides experts over neighbouring shard and context ranks (replicate and context
ranks if nothing is sharded), which have different tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.contract.base import CheckedModel, FieldConflict, PositiveInt
from trainer.contract.models import ModelShape
from trainer.contract.optimisation import CompressionSpec

Schedule = Literal[
    "gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v", "looped_bfs"
]

STATE_BYTES_PER_PARAMETER = 16
"""Weight, gradient and two moments in fp32."""
MAX_REPLICATED_STATE_BYTES = 2 * 2**30
"""`zero: auto` replicates weights, gradients and optimizer state on every data rank up to this size: sharding so little
costs more time than it saves memory."""
TWO_STAGES_PER_RANK = ("zbv_zero_bubble", "dualpipe_v")
MANY_STAGES_PER_RANK = ("interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs")
SPLIT_BACKWARD = ("interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v")


AXES = (
    "data", "replicate", "zero", "tensor", "context", "pipeline", "pipeline_schedule", "stages_per_rank",
    "stage_layers", "expert",
)  # fmt: skip
"""The fields that `parallelism.auto` chooses."""


class ParallelismSpec(CheckedModel):
    """How the processes divide the work. `data` x `tensor` x `context` x `pipeline` is the number of processes."""

    auto: bool = False
    """Whether the axes are chosen by an estimate of memory and time, for the number of processes and the memory of an
    accelerator; the resolved spec has the choice. If the platform does not know that memory, the trainer chooses when
    it starts. On CPUs the axes keep their defaults. Cannot be combined with `data`, `replicate`, `zero`, `tensor`,
    `context`, `pipeline`, `pipeline_schedule`, `stages_per_rank`, `stage_layers` and `expert`."""
    data: PositiveInt | Literal["auto"] = "auto"
    """Number of data-parallel ranks, which train on different sequences. `auto` is what the other axes leave over."""
    replicate: PositiveInt | Literal["auto"] = "auto"
    """Number of replicas of the sharded state (HSDP): sharding happens in groups of `data` / `replicate` ranks, and
    only sums of gradients cross between groups. Must divide `data`; with `zero` 0 it equals `data`. `auto` is 1, or
    `data` with `zero` 0."""
    zero: Annotated[int, Field(ge=0, le=3)] | Literal["auto"] = "auto"
    """What the data ranks shard: 0 nothing (plain data parallelism), 1 the optimizer state, 2 also the gradients, 3
    also the parameters. `auto` is 0 for a single data rank, while weights, gradients and optimizer state take at most
    2 GiB per rank, or with `lora.quantization` (the last two unless `replicate` is below `data`), else 3, or 1 in a
    pipeline. A pipeline refuses 2, and 3 with the schedules `interleaved_zero_bubble`, `zbv_zero_bubble` and
    `dualpipe_v`. A single data rank with 3 has no bf16 copy of all weights, so it takes less memory and more time."""
    tensor: PositiveInt = 1
    """Number of tensor-parallel ranks, which divide each matrix. Must divide the numbers of heads and the feed-forward
    sizes of the model, and on several nodes `processes_per_node`. `sequence_length` must be a multiple of `context` x
    `tensor`."""
    tensor_overlap: bool = False
    """Whether the matrix products of dense layers overlap with the exchange between tensor ranks, where the GPUs can
    reach each other's memory; elsewhere it has no effect. Refused with `tensor` 1, `lora` or precision `fp8`."""
    context: PositiveInt = 1
    """Number of context-parallel ranks, which divide each sequence."""
    context_attention: Literal["ring", "ulysses"] = "ring"
    """How context ranks compute attention. `ring` passes keys and values around, in layers with a `sliding_window`
    only those that windows reach, and needs a `sequence_length` that is a multiple of 2 x `context`. `ulysses`
    exchanges heads, and needs numbers of heads that are multiples of `context` x `tensor`. Ignored with `context`
    1."""
    pipeline: PositiveInt = 1
    """Number of pipeline ranks, which divide the layers."""
    pipeline_schedule: Schedule = "1f1b"
    """Order of the forward and backward passes of micro-batches. `1f1b` needs at least as many micro-batches as ranks,
    and `dualpipe_v` as stages; a multiple of the ranks suits the interleaved schedules and `looped_bfs`. Ignored with
    `pipeline` 1."""
    stages_per_rank: PositiveInt | Literal["auto"] = "auto"
    """Number of stages of the model on each pipeline rank. `auto` is 2 for the interleaved, V-shaped and breadth-first
    schedules, which are `interleaved_1f1b`, `interleaved_zero_bubble`, `looped_bfs`, `zbv_zero_bubble` and
    `dualpipe_v`, and 1 for the others. The V-shaped schedules take 2 only, `gpipe` and `1f1b` 1 only."""
    stage_layers: Annotated[list[PositiveInt] | None, Field(examples=[[7, 9]])] = None
    """Number of layers of each stage, in the order of the model. Must add up to `num_layers`. Without it the layers are
    divided so that the slowest stage is as fast as possible. Needs `pipeline` 2 or more."""
    expert: PositiveInt = 1
    """Number of ranks that the experts of a layer are divided over. They are taken from the shard and context ranks
    (replicate and context ranks with `zero` 0), so they do not add to the number of processes. Must divide the number
    of experts and the product of these axes."""
    compression: CompressionSpec = CompressionSpec()
    """Compression of gradients that are exchanged between replicas."""
    micro_batch_sequences: PositiveInt | Literal["auto"] = "auto"
    """Largest number of sequences in one forward pass of a data rank. `auto` starts with as many as the estimate fits
    into 80 % of the accelerator's memory, at most 65,536 tokens a rank; on CPUs with as many as keep the fp32 logits of
    a micro-batch within 256 MiB. In a pipeline both are at most what fills it. Halved when memory runs out."""

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, fields: object) -> object:
        """Accept `reshard_after_forward`, which selected the ZeRO stage of the data axis before `zero` did."""
        if isinstance(fields, dict) and "reshard_after_forward" in fields:
            fields = dict(fields)
            reshard = fields.pop("reshard_after_forward")
            fields.setdefault("zero", 3 if reshard else 1)
        return fields

    def _conflicts(self) -> Iterator[FieldConflict]:
        if not self.auto:
            return
        for name in AXES:
            if getattr(self, name) != ParallelismSpec.model_fields[name].default:
                yield FieldConflict(name, f"parallelism auto chooses {name}; leave it out, or auto", ("auto",))

    @property
    def num_stages_per_rank(self) -> int:
        """Return the pipeline stages of a rank."""
        if self.stages_per_rank != "auto":
            return self.stages_per_rank
        return 2 if self.pipeline_schedule in TWO_STAGES_PER_RANK + MANY_STAGES_PER_RANK else 1

    @property
    def num_stages(self) -> int:
        """Return the pipeline stages of the model, 1 without a pipeline."""
        return self.pipeline * self.num_stages_per_rank if self.pipeline > 1 else 1


@dataclass(frozen=True)
class MeshSizes:
    """Number of ranks along each axis; `expert` uses ranks of the others and is no factor of the world size."""

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1
    expert: int = 1
    zero: int = 0

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.pipeline * self.replicate * self.shard * self.context * self.tensor

    @property
    def data(self) -> int:
        """Return the number of data-parallel ranks, which train on different sequences."""
        return self.replicate * self.shard

    @property
    def named(self) -> dict[str, int]:
        """Return the axes of the mesh and their sizes, outermost first."""
        return {
            "pipeline": self.pipeline,
            "replicate": self.replicate,
            "shard": self.shard,
            "context": self.context,
            "tensor": self.tensor,
        }

    @property
    def axes(self) -> dict[str, int]:
        """Return the sizes as checkpoints record them."""
        return {**self.named, "expert": self.expert, "zero": self.zero}


@dataclass(frozen=True)
class MeshProblem:
    """Why a mesh is impossible. `field`: the path below `training`. `code`: for programs."""

    field: str
    code: str
    message: str


def mesh_sizes(
    spec: ParallelismSpec, shape: ModelShape, vocab_size: int, world: int, *, has_small_state: bool = False
) -> MeshSizes | MeshProblem:
    """Return the mesh of `world` ranks, or why there is none. `has_small_state`: sharding would save little, whatever
    the number of parameters."""
    others = spec.pipeline * spec.context * spec.tensor
    factors = f"pipeline {spec.pipeline} x context {spec.context} x tensor {spec.tensor}"
    if world % others:
        return MeshProblem(
            "parallelism", "wrong_mesh",
            f"{factors} is {others} ranks, which does not divide the {world} processes of the run "
            f"(nodes x processes_per_node); change either",
        )  # fmt: skip
    data = world // others if spec.data == "auto" else spec.data
    if data * others != world:
        return MeshProblem(
            "parallelism/data", "wrong_mesh",
            f"data {data} x {factors} is {data * others} ranks, but nodes x processes_per_node is {world}; "
            f"leave data out or make it {world // others}",
        )  # fmt: skip
    zero = spec.zero
    replicate = data if spec.replicate == "auto" and zero == 0 else 1 if spec.replicate == "auto" else spec.replicate
    if zero == "auto":
        state = shape.num_parameters(vocab_size) * STATE_BYTES_PER_PARAMETER // (spec.tensor * spec.pipeline)
        is_single = data * spec.context == 1  # has nothing to shard, and FSDP copies weights and gradients all the same
        is_replicated = has_small_state or is_single or state <= MAX_REPLICATED_STATE_BYTES
        # A pipeline passes every stage many times a step: gathering parameters each time would cost too much.
        sharded = 3 if spec.pipeline == 1 else 1
        zero = 0 if is_replicated and spec.replicate in ("auto", data) else sharded
        replicate = data if zero == 0 else replicate
    if data % replicate:
        return MeshProblem(
            "parallelism/replicate", "wrong_mesh",
            f"replicate {replicate} does not divide the data axis of {data} ranks; take a divisor of {data}",
        )  # fmt: skip
    if zero == 0 and replicate != data:
        return MeshProblem(
            "parallelism/replicate", "wrong_mesh",
            f"zero 0 replicates everything, so replicate is the data axis of {data} ranks, not {replicate}; "
            "leave replicate out, or take zero 1, 2 or 3",
        )  # fmt: skip
    return MeshSizes(
        pipeline=spec.pipeline, replicate=replicate, shard=data // replicate, context=spec.context,
        tensor=spec.tensor, expert=spec.expert, zero=zero,
    )  # fmt: skip


def mesh_problems(
    spec: ParallelismSpec, sizes: MeshSizes, shape: ModelShape, vocab_size: int, sequence_length: int, *, compile: bool
) -> Iterator[MeshProblem]:
    """Yield the problems of a model of this shape on this mesh."""
    yield from _tensor_problems(sizes, shape, vocab_size, sequence_length)
    yield from _context_problems(spec, sizes, shape, sequence_length)
    yield from _pipeline_problems(spec, shape, compile=compile)
    yield from _expert_problems(sizes, shape)


def _tensor_problems(sizes: MeshSizes, shape: ModelShape, vocab_size: int, length: int) -> Iterator[MeshProblem]:
    if sizes.tensor == 1:
        return
    cut = {
        "num_heads": shape.num_heads,
        "num_kv_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
    }
    if shape.moe is not None:
        cut["moe.expert_size"] = shape.moe.expert_size
    for name, size in cut.items():
        if size % sizes.tensor:
            yield MeshProblem(
                "parallelism/tensor", "uneven_cut",
                f"tensor {sizes.tensor} does not divide the model's {name} {size}; take a divisor of it",
            )  # fmt: skip
    if vocab_size < sizes.tensor:
        yield MeshProblem(
            "parallelism/tensor", "uneven_cut", f"tensor {sizes.tensor} exceeds the vocabulary of {vocab_size} entries"
        )
    if length % (sizes.context * sizes.tensor):
        yield MeshProblem(
            "parallelism/tensor", "uneven_cut",
            f"between the layers each tensor rank holds a part of the sequence: sequence_length {length} must be a "
            f"multiple of context {sizes.context} x tensor {sizes.tensor}",
        )  # fmt: skip


def _context_problems(spec: ParallelismSpec, sizes: MeshSizes, shape: ModelShape, length: int) -> Iterator[MeshProblem]:
    if sizes.context == 1:
        return
    if spec.context_attention == "ring" and length % (2 * sizes.context):
        yield MeshProblem(
            "parallelism/context", "uneven_cut",
            f"ring attention gives each rank an early and a late part: sequence_length {length} must be a multiple of "
            f"{2 * sizes.context} (2 x context)",
        )  # fmt: skip
    if spec.context_attention == "ulysses":
        if length % sizes.context:
            yield MeshProblem(
                "parallelism/context", "uneven_cut",
                f"context {sizes.context} does not divide sequence_length {length}",
            )  # fmt: skip
        for name, heads in (("num_heads", shape.num_heads), ("num_kv_heads", shape.num_kv_heads)):
            if heads % (sizes.tensor * sizes.context):
                yield MeshProblem(
                    "parallelism/context_attention", "uneven_cut",
                    f"ulysses spreads heads: {name} {heads} must be a multiple of context {sizes.context} x tensor "
                    f"{sizes.tensor}; take ring",
                )  # fmt: skip


def _pipeline_problems(spec: ParallelismSpec, shape: ModelShape, *, compile: bool) -> Iterator[MeshProblem]:
    per_rank, schedule = spec.num_stages_per_rank, spec.pipeline_schedule
    if spec.pipeline > 1 and spec.zero == 2:
        yield MeshProblem(
            "parallelism/zero", "wrong_zero",
            "a pipeline reduces gradients once a step, so zero 2 would be zero 1 under another name; take 1 or 3",
        )  # fmt: skip
    if spec.pipeline == 1:
        if spec.stage_layers is not None or spec.stages_per_rank not in ("auto", 1):
            yield MeshProblem(
                "parallelism/pipeline", "no_pipeline", "stage_layers and stages_per_rank need pipeline 2 or more"
            )
        return
    if spec.zero == 3 and schedule in SPLIT_BACKWARD:
        yield MeshProblem(
            "parallelism/zero", "wrong_zero",
            f"{schedule} computes the gradients of weights later than those of inputs, when zero 3 has freed the "
            "weights; take zero 1, or 1f1b or interleaved_1f1b",
        )  # fmt: skip
    allowed = 2 if schedule in TWO_STAGES_PER_RANK else 1 if schedule not in MANY_STAGES_PER_RANK else per_rank
    if per_rank != allowed:
        yield MeshProblem(
            "parallelism/stages_per_rank", "wrong_schedule",
            f"{schedule} runs {allowed} per rank, not {per_rank}; leave stages_per_rank out or take interleaved_1f1b",
        )  # fmt: skip
    if spec.num_stages > shape.num_layers:
        yield MeshProblem(
            "parallelism/pipeline", "too_many_stages",
            f"{spec.num_stages} stages (pipeline {spec.pipeline} x {per_rank}) need as many layers; the model has "
            f"{shape.num_layers}",
        )  # fmt: skip
    if spec.stage_layers is not None and (
        len(spec.stage_layers) != spec.num_stages or sum(spec.stage_layers) != shape.num_layers
    ):
        yield MeshProblem(
            "parallelism/stage_layers", "wrong_layers",
            f"stage_layers {spec.stage_layers} must be {spec.num_stages} numbers that add up to {shape.num_layers}",
        )  # fmt: skip
    if compile and schedule in SPLIT_BACKWARD:
        yield MeshProblem(
            "parallelism/pipeline_schedule", "wrong_schedule",
            f"{schedule} takes the backward pass apart, which a compiled block does not allow; set compile to false or "
            "take 1f1b or interleaved_1f1b",
        )  # fmt: skip


def _expert_problems(sizes: MeshSizes, shape: ModelShape) -> Iterator[MeshProblem]:
    if sizes.expert == 1:
        return
    if shape.moe is None:
        yield MeshProblem("parallelism/expert", "no_experts", "the model has no experts (model.shape.moe); set it to 1")
        return
    if shape.moe.num_experts % sizes.expert:
        yield MeshProblem(
            "parallelism/expert", "uneven_cut",
            f"expert {sizes.expert} does not divide the model's {shape.moe.num_experts} experts",
        )  # fmt: skip
    room = (sizes.shard if sizes.zero else sizes.replicate) * sizes.context
    if room % sizes.expert:
        axes = "shard" if sizes.zero else "replicate"
        yield MeshProblem(
            "parallelism/expert", "wrong_mesh",
            f"experts are spread over {axes} x context ranks: expert {sizes.expert} must divide {room}",
        )  # fmt: skip


def pipeline_problem(spec: ParallelismSpec, num_micro_batches: int) -> MeshProblem | None:
    """Return why this number of micro-batches does not fit the schedule, None if it does."""
    schedule, ranks = spec.pipeline_schedule, spec.pipeline
    if ranks == 1:
        return None
    wanted = ""
    if schedule == "1f1b" and num_micro_batches < ranks:
        wanted = f"at least {ranks}, as many as there are stages"
    if schedule == "dualpipe_v" and num_micro_batches < spec.num_stages:
        wanted = f"at least {spec.num_stages}, as many as there are stages"
    if schedule in MANY_STAGES_PER_RANK:
        rounds = max(1, num_micro_batches // ranks)
        if num_micro_batches % rounds:
            wanted = f"a number that {num_micro_batches} // {ranks} rounds divide, for example a multiple of {ranks}"
    if not wanted:
        return None
    return MeshProblem(
        "parallelism/micro_batch_sequences", "wrong_micro_batches",
        f"{schedule} over {ranks} ranks needs {wanted} micro-batches on each data rank, and the step has "
        f"{num_micro_batches}; change micro_batch_sequences or tokens_per_step",
    )  # fmt: skip


def stage_layers(shape: ModelShape, vocab_size: int, num_stages: int, chosen: list[int] | None) -> list[range]:
    """Return the layers of each stage: the split with the fastest slowest stage, and among equals the one with the
    fewest parameters in its largest stage.

    The output head counts as computation; embedding and head count as parameters.
    """
    if chosen is None:
        return list(_balanced_stages(shape, vocab_size, num_stages))
    ends = list(accumulate(chosen))
    return [range(end - count, end) for end, count in zip(ends, chosen, strict=True)]


@lru_cache(maxsize=256)
def _balanced_stages(shape: ModelShape, vocab_size: int, num_stages: int) -> tuple[range, ...]:
    layers = shape.num_layers
    words = vocab_size * shape.hidden_size
    computed = [shape.attention_parameters() + shape.mlp_parameters(layer, active=True) for layer in range(layers)]
    computed_before = list(accumulate(computed, initial=0))
    stored_before = list(accumulate((shape.layer_parameters(layer) for layer in range(layers)), initial=0))

    def computation(start: int, stop: int) -> int:
        return computed_before[stop] - computed_before[start] + words * (stop == layers)

    def parameters(start: int, stop: int) -> int:
        return stored_before[stop] - stored_before[start] + words * ((stop == layers) + (start == 0))

    slowest = _least_slowest(layers, num_stages, computation)
    return tuple(_best_split(layers, num_stages, parameters, lambda start, stop: computation(start, stop) <= slowest))


def _least_slowest(layers: int, num_stages: int, computation: Callable[[int, int], int]) -> int:
    """Return the computation of the slowest stage of the fastest split (bisection; a limit is kept by as many stages as
    layers fill one after the other)."""
    low, high = 0, computation(0, layers)
    while low < high:
        limit = (low + high) // 2
        stages, start = 0, 0
        while start < layers and stages <= num_stages:
            stop = start
            while stop < layers and computation(start, stop + 1) <= limit:
                stop += 1
            if stop == start:  # one layer is beyond the limit
                stages = num_stages
            start, stages = max(stop, start + 1), stages + 1
        low, high = (low, limit) if stages <= num_stages else (limit + 1, high)
    return low


def stage_numbers(spec: ParallelismSpec, rank: int) -> list[int]:
    """Return the stages of a pipeline rank.

    V-shaped schedules assign stages down the ranks and up again, so the first rank has the first and the last stage;
    other schedules assign them round-robin.
    """
    if spec.pipeline_schedule in TWO_STAGES_PER_RANK:
        return [rank, spec.num_stages - 1 - rank]
    return list(range(rank, spec.num_stages, spec.pipeline))


def _best_split(
    layers: int, num_stages: int, cost: Callable[[int, int], int], allowed: Callable[[int, int], bool]
) -> list[range]:
    """Return the split into allowed stages with the smallest maximum cost (dynamic programming over the first n
    layers). `cost` and `allowed` take the first layer of a stage and the one after its last; a stage that contains one
    that is not allowed is not either."""
    best: dict[int, tuple[int, list[range]]] = {0: (0, [])}
    for _ in range(num_stages):
        longer: dict[int, tuple[int, list[range]]] = {}
        for start, (so_far, stages) in best.items():
            for stop in range(start + 1, layers + 1):
                if not allowed(start, stop):
                    break
                greatest = max(so_far, cost(start, stop))
                if stop not in longer or greatest < longer[stop][0]:
                    longer[stop] = (greatest, [*stages, range(start, stop)])
        best = longer
    return best[layers][1]
