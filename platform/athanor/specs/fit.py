"""Does a job fit where it wants to run? Arithmetic on shapes; the measured truth comes from the trainer."""

from dataclasses import dataclass

from athanor.core.errors import FieldProblem
from athanor.specs.v1 import JobSpec

# Parameter, gradient and two Adam moments, each in fp32, are sharded over the data axis (ZeRO-3).
STATE_BYTES_PER_PARAMETER = 16
# What a process needs before it holds a model: interpreter, torch, communicators.
PROCESS_BYTES = 350 * 1024 * 1024
# Activations kept per token and layer, in units of hidden_size values (Korthikanti et al. 2022, eq. 2: 34 bytes
# at 16 bit with flash attention, that is 17 values), and the logits of the head in fp32 with their gradient.
ACTIVATION_VALUES = 17
LOGITS_BYTES = 8


@dataclass(frozen=True)
class Pool:
    """What `fit` must know of a pool."""

    name: str
    slots_per_node: int
    nodes: int
    memory_bytes_per_node: int


@dataclass(frozen=True)
class Estimate:
    num_parameters: int
    processes: int
    tokens_total: int
    memory_bytes_per_process: int
    pool_memory_bytes_per_process: int


def micro_batch(spec: JobSpec) -> int:
    """Sequences in one forward pass of one process. `auto` is at most 8, and never more than its share."""
    training = spec.training
    share = -(-training.step_sizes.full // spec.resources.world_size)
    asked = training.parallelism.micro_batch_sequences
    return min(share, 8 if asked == "auto" else asked)


def estimate(spec: JobSpec, pool: Pool) -> Estimate:
    training = spec.training
    shape = training.model.resolve()
    vocab = training.tokenizer.vocab_size
    parameters = shape.num_parameters(vocab)
    state = parameters * STATE_BYTES_PER_PARAMETER // spec.resources.world_size
    # FSDP gathers one block at a time; the largest is a layer or the embedding.
    layer = (parameters - vocab * shape.hidden_size) // shape.num_layers
    gathered = 2 * 4 * max(layer, vocab * shape.hidden_size)
    width = 2 if training.precision == "bf16" else 4
    tokens = micro_batch(spec) * training.sequence_length
    values_per_token = shape.num_layers * ACTIVATION_VALUES
    if training.activation_checkpointing == "full":  # each block keeps its input, and one block is recomputed
        values_per_token = shape.num_layers + ACTIVATION_VALUES
    activations = tokens * shape.hidden_size * values_per_token * width
    return Estimate(
        num_parameters=parameters,
        processes=spec.resources.world_size,
        tokens_total=training.tokens_before(training.steps),
        memory_bytes_per_process=PROCESS_BYTES + state + gathered + activations + tokens * vocab * LOGITS_BYTES,
        pool_memory_bytes_per_process=pool.memory_bytes_per_node // spec.resources.processes_per_node,
    )


def problems(spec: JobSpec, pool: Pool) -> list[FieldProblem]:
    """Why this job can never run in this pool."""
    found = []
    need = estimate(spec, pool)
    if need.memory_bytes_per_process > need.pool_memory_bytes_per_process:
        found.append(
            FieldProblem(
                "/training/model",
                "does_not_fit",
                f"{need.num_parameters:,} parameters over {need.processes} processes need about "
                f"{_gib(need.memory_bytes_per_process)} each; pool {pool.name} has "
                f"{_gib(need.pool_memory_bytes_per_process)} per process. Take a smaller model, more nodes, "
                "or a smaller micro-batch",
            )
        )
    if spec.resources.nodes > pool.nodes:
        found.append(
            FieldProblem(
                "/resources/nodes",
                "too_many_nodes",
                f"{spec.resources.nodes} nodes asked, pool {pool.name} has {pool.nodes}",
            )
        )
    data = spec.training.parallelism.data
    if data != "auto" and data != spec.resources.world_size:
        found.append(
            FieldProblem(
                "/training/parallelism/data",
                "wrong_mesh",
                f"data={data} but nodes x processes_per_node is {spec.resources.world_size}; "
                "the data axis takes every process, so leave it out or make them equal",
            )
        )
    fewest = spec.training.step_sizes.fewest
    if fewest < spec.resources.world_size:
        found.append(
            FieldProblem(
                "/training/tokens_per_step" if spec.training.batch_ramp is None else "/training/batch_ramp",
                "too_few_sequences",
                f"{fewest} sequences per step cannot feed {spec.resources.world_size} "
                f"processes; take at least {spec.resources.world_size * spec.training.sequence_length} tokens",
            )
        )
    return found


def warnings(spec: JobSpec, pool: Pool) -> list[FieldProblem]:
    """What will work, but not as well as its author may think."""
    found = []
    if spec.resources.processes_per_node > pool.slots_per_node:
        found.append(
            FieldProblem(
                "/resources/processes_per_node",
                "oversubscribed",
                f"{spec.resources.processes_per_node} processes share {pool.slots_per_node} slots of a node of pool "
                f"{pool.name}: they will take turns",
            )
        )
    if spec.checkpoint.every_steps > spec.training.steps:
        found.append(
            FieldProblem(
                "/checkpoint/every_steps",
                "no_checkpoint_before_the_end",
                f"every {spec.checkpoint.every_steps} steps in a run of {spec.training.steps}: a fault starts over",
            )
        )
    return found


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
