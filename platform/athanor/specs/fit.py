"""Does a job fit where it wants to run? Arithmetic on shapes; the measured truth comes from the trainer."""

from dataclasses import dataclass

from athanor.core.errors import FieldProblem
from athanor.specs.v1 import JobSpec
from trainer.contract.parallelism import STATE_BYTES_PER_PARAMETER, MeshSizes
from trainer.contract.plan import micro_batch_size, plan_mesh

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


def estimate(spec: JobSpec, pool: Pool) -> Estimate:
    training, memory = spec.training, pool.memory_bytes_per_node // spec.resources.processes_per_node
    if training is None:
        return Estimate(0, spec.resources.world_size, 0, PROCESS_BYTES, memory)
    shape = training.model.resolve()
    vocab = training.tokenizer.vocab_size
    parameters = shape.num_parameters(vocab)
    mesh = plan_mesh(training, vocab, spec.resources.world_size)
    sizes = MeshSizes(replicate=spec.resources.world_size) if isinstance(mesh, list) else mesh
    cut = sizes.pipeline * sizes.tensor * (sizes.shard * sizes.context if sizes.zero else 1)
    state = parameters * STATE_BYTES_PER_PARAMETER // cut
    if training.lora is not None:  # what rests is neither optimised nor has gradients
        trained = shape.adapter_parameters(training.lora.rank, training.lora.targets)
        state = (trained * STATE_BYTES_PER_PARAMETER + parameters * 4) // cut
    # FSDP gathers one block at a time; the largest is a layer or the embedding.
    layer = max(map(shape.layer_parameters, range(shape.num_layers)))
    gathered = 2 * 4 * max(layer, vocab * shape.hidden_size) // sizes.tensor if sizes.zero else 0
    width = 4 if training.precision == "fp32" else 2
    in_flight = min(sizes.pipeline, training.step_sizes.full)  # micro-batches that a pipeline keeps for its backward
    tokens = micro_batch_size(training, sizes, vocab) * training.sequence_length // sizes.context // sizes.tensor
    values_per_token = -(-shape.num_layers // sizes.pipeline) * in_flight * ACTIVATION_VALUES
    if training.activation_checkpointing == "full":  # each block keeps its input, and one block is recomputed
        values_per_token = shape.num_layers + ACTIVATION_VALUES
    activations = tokens * shape.hidden_size * values_per_token * width
    return Estimate(
        num_parameters=parameters,
        processes=spec.resources.world_size,
        tokens_total=training.tokens_before(training.steps),
        memory_bytes_per_process=PROCESS_BYTES + state + gathered + activations + tokens * vocab * LOGITS_BYTES,
        pool_memory_bytes_per_process=memory,
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
    if spec.training is None:
        if spec.resources.world_size > 1:
            asked = f"{spec.resources.nodes} x {spec.resources.processes_per_node}"
            detail = f"{asked} processes asked; preparing data takes one, which uses all cores of its node"
            found.append(FieldProblem("/resources", "too_many_processes", detail))
        return found
    mesh = plan_mesh(spec.training, spec.training.tokenizer.vocab_size, spec.resources.world_size)
    if isinstance(mesh, list):
        found += [FieldProblem(f"/training/{each.field}", each.code, each.message) for each in mesh]
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
    if spec.training is not None and spec.checkpoint.every_steps > spec.training.steps:
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
