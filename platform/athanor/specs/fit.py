"""Estimate whether a job fits its pool: memory of accelerators and nodes, number of nodes, processes.

The estimates are arithmetic on the shapes of the spec; the trainer measures the actual memory.
"""

from dataclasses import dataclass

from athanor.core.errors import FieldProblem
from athanor.specs.v1 import JobSpec
from trainer.contract.cost import REPLICAS, REPLICATED_SHADOW_COPIES, SHADOW_COPIES
from trainer.contract.launch_plan import micro_batch_size, plan_mesh
from trainer.contract.mesh_choice import resolve_parallelism
from trainer.contract.micro_batch import PROCESS_BYTES, find_largest_micro_batch, rank_cost
from trainer.contract.parallelism import MeshSizes, ParallelismSpec
from trainer.contract.precision import accelerator_has_bf16, fp32_cost
from trainer.contract.training import TrainingSpec


@dataclass(frozen=True)
class PoolShape:
    """The facts of a pool that estimates need. `nodes` is their number, with the `spare_nodes` that stay free of jobs.

    `memory_bytes_per_node` is host memory. `accelerator_memory_bytes` is that of one accelerator, None if nobody
    configured it; it is not used for "cpu".
    """

    name: str
    slots_per_node: int
    nodes: int
    memory_bytes_per_node: int
    accelerator: str = "cpu"
    accelerator_memory_bytes: int | None = None
    spare_nodes: int = 0

    @property
    def nodes_of_jobs(self) -> int:
        """Return the number of nodes that jobs may hold."""
        return self.nodes - self.spare_nodes

    def host_bytes_per_process(self, processes_per_node: int) -> int:
        """Return the host memory of a node divided by the processes."""
        return self.memory_bytes_per_node // processes_per_node

    def device_bytes_per_process(self, processes_per_node: int) -> int | None:
        """Return the memory in which a process trains: of its accelerator, shared if there are more processes than
        slots, or of the host in a pool without accelerators. None if it is not known."""
        if self.accelerator == "cpu":
            return self.host_bytes_per_process(processes_per_node)
        if self.accelerator_memory_bytes is None:
            return None
        return self.accelerator_memory_bytes * min(self.slots_per_node, processes_per_node) // processes_per_node


@dataclass(frozen=True)
class Estimate:
    """The resources that a spec needs, and the memory that the pool has per process.

    `memory_bytes_per_process`: memory of the accelerator, or host memory in a pool without accelerators, of the
    pipeline stage that needs most. `host_bytes_per_process`: host memory of the stage that needs most.
    `shadow_bytes_per_process`: what shadow checkpoints take of host memory beyond that, if they are made, with those of
    another node in a run with spare nodes.
    `pool_memory_bytes_per_process` is None if the memory of the pool's accelerators is not known. `tokens_total` is
    over all steps.
    """

    num_parameters: int
    processes: int
    tokens_total: int
    memory_bytes_per_process: int
    pool_memory_bytes_per_process: int | None
    host_bytes_per_process: int
    shadow_bytes_per_process: int = 0


def estimate(spec: JobSpec, pool: PoolShape, *, with_smallest_micro_batches: bool = False) -> Estimate:
    """Estimate what a spec needs in a pool. An evaluation needs the memory of forward passes
    (`trainer.contract.forward_cost`); a replay trains, and needs that of the training.

    `with_smallest_micro_batches`: take 1 sequence for micro-batches of automatic size, the smallest that restarts after
    an out-of-memory error come down to.
    """
    training = spec.training
    available = pool.device_bytes_per_process(spec.resources.processes_per_node)
    if training is None:
        return Estimate(0, spec.resources.world_size, 0, PROCESS_BYTES, available, PROCESS_BYTES)
    vocab = training.tokenizer.vocab_size
    mesh = plan_mesh(training, vocab, spec.resources.world_size)
    # Without a valid mesh there is a problem to report; one data rank per process is a good approximation.
    plain = training.model_copy(update={"parallelism": ParallelismSpec()}) if isinstance(mesh, list) else training
    sizes = MeshSizes(replicate=spec.resources.world_size) if isinstance(mesh, list) else mesh
    if with_smallest_micro_batches:
        plain = _with_smallest_micro_batches(plain)
    on_host = pool.accelerator == "cpu"
    bound = find_largest_micro_batch(plain, sizes, vocab, None if on_host else available, spec.evaluation)
    micro_batch = micro_batch_size(plain, sizes, vocab, bound=bound)
    costs = (
        rank_cost(plain, vocab, sizes, place, micro_batch, evaluation=spec.evaluation, on_gpu=not on_host)
        for place in range(sizes.pipeline)
    )
    memories = [each.memory() for each in costs]
    device = PROCESS_BYTES + max(each.total + (each.host + each.saves if on_host else 0) for each in memories)
    return Estimate(
        num_parameters=training.model.resolve().num_parameters(vocab),
        processes=spec.resources.world_size,
        tokens_total=training.tokens_before(training.steps) if spec.trains else 0,
        memory_bytes_per_process=device,
        pool_memory_bytes_per_process=available,
        host_bytes_per_process=device if on_host else PROCESS_BYTES + max(each.host + each.saves for each in memories),
        shadow_bytes_per_process=max(each.shadows for each in memories) * _shadow_copies(spec) // SHADOW_COPIES,
    )


def _shadow_copies(spec: JobSpec) -> int:
    """Return how many copies of a process's state its node holds, and of a process of another node beside it."""
    has_replicas = spec.resources.nodes > 1 and (spec.resources.spare_nodes > 0 or spec.resources.min_nodes is not None)
    return REPLICATED_SHADOW_COPIES + REPLICAS if has_replicas else SHADOW_COPIES


def rejections(spec: JobSpec, pool: PoolShape) -> list[FieldProblem]:
    """Return the reasons to reject this job in this pool; empty if it is accepted."""
    spec = resolve(spec, pool)
    found = _too_large(estimate(spec, pool, with_smallest_micro_batches=True), spec, pool)
    nodes, spare = spec.resources.nodes, spec.resources.spare_nodes
    found += _exceeds_pool(spec, pool)
    if spare and nodes == 1:
        detail = "single-node jobs are retried as a new attempt; spare_nodes only applies to multi-node jobs"
        found.append(FieldProblem("/resources/spare_nodes", "no_use_for_spares", detail))
    if spec.resources.min_nodes is not None:
        found += _cannot_shrink(spec, pool, spec.resources.min_nodes)
    if (spec.resources.memory_bytes_per_node or 0) > pool.memory_bytes_per_node:
        detail = (
            f"{_gib(spec.resources.memory_bytes_per_node or 0)} asked of each node, those of pool {pool.name} have "
        )
        detail += _gib(pool.memory_bytes_per_node)
        found.append(FieldProblem("/resources/memory_bytes_per_node", "too_much_memory", detail))
    if spec.training is None:
        if spec.resources.processes_per_node > 1:
            detail = (
                f"{spec.resources.processes_per_node} processes per node asked; preparing data takes 1, which uses "
            )
            detail += "all cores of its node"
            found.append(FieldProblem("/resources/processes_per_node", "too_many_processes", detail))
        return found
    mesh = plan_mesh(spec.training, spec.training.tokenizer.vocab_size, spec.resources.world_size)
    if isinstance(mesh, list):
        found += [FieldProblem(f"/training/{each.field}", each.code, each.message) for each in mesh]
    elif nodes > 1 and spec.resources.processes_per_node % mesh.tensor:
        detail = (
            f"groups of {mesh.tensor} ranks would span nodes of {spec.resources.processes_per_node} processes, and "
            "every layer's all-reduce would cross nodes; take a divisor of processes_per_node"
        )
        found.append(FieldProblem("/training/parallelism/tensor", "tensor_leaves_the_node", detail))
    return found


def _exceeds_pool(spec: JobSpec, pool: PoolShape) -> list[FieldProblem]:
    """Return why a job needs more nodes, or more slots, than the pool has for jobs."""
    asked = spec.resources
    nodes, slots = asked.nodes + asked.spare_nodes, pool.nodes_of_jobs * pool.slots_per_node
    if nodes > pool.nodes_of_jobs:
        detail = f"{asked.nodes} nodes" + (f" and {asked.spare_nodes} spare ones" if asked.spare_nodes else "")
        detail += f" asked, pool {pool.name} has {pool.nodes}"
        if pool.spare_nodes:
            detail += f", {pool.spare_nodes} of them spare; take at most {pool.nodes_of_jobs} in all, or another pool"
        field = "nodes" if asked.nodes > pool.nodes_of_jobs else "spare_nodes"
        return [FieldProblem(f"/resources/{field}", "too_many_nodes", detail)]
    if pool.spare_nodes and asked.slots > slots:
        # Without spare nodes, a job with more processes than slots gets all slots of its pool.
        detail = (
            f"{asked.processes_per_node} processes per node need {asked.slots} slots, and jobs may hold {slots}: pool "
            f"{pool.name} has {pool.nodes} nodes, {pool.spare_nodes} of them spare; take at most {slots // nodes}"
        )
        return [FieldProblem("/resources/processes_per_node", "too_many_processes", detail)]
    return []


def _cannot_shrink(spec: JobSpec, pool: PoolShape, fewest: int) -> list[FieldProblem]:
    """Return why a job cannot continue on its smallest number of nodes."""
    field, nodes, training = "/resources/min_nodes", spec.resources.nodes, spec.training
    if training is None:
        return [FieldProblem(field, "does_not_train", f"min_nodes {fewest} only applies to training; leave it out")]
    if fewest >= nodes:
        detail = f"min_nodes {fewest} is not less than nodes {nodes}; take at most {nodes - 1}, or leave it out"
        if nodes == 1:
            detail = f"min_nodes {fewest} for a job of one node, which cannot train on fewer; leave it out"
        return [FieldProblem(field, "not_fewer_nodes", detail)]
    smaller = spec.model_copy(update={"resources": spec.resources.model_copy(update={"nodes": fewest})})
    mesh = plan_mesh(training, training.tokenizer.vocab_size, smaller.resources.world_size)
    if isinstance(mesh, list):
        reasons = [each.message for each in mesh]
    else:
        need = estimate(smaller, pool, with_smallest_micro_batches=True)
        reasons = [each.detail for each in _too_large(need, smaller, pool)]
    return [
        FieldProblem(
            field, "does_not_fit",
            f"the job cannot train on min_nodes {fewest}: {reason}. Take a larger min_nodes that fits, or leave it out",
        )
        for reason in reasons
    ]  # fmt: skip


def _too_large(need: Estimate, spec: JobSpec, pool: PoolShape) -> list[FieldProblem]:
    """Return what does not fit the pool's accelerators or the memory of its nodes."""
    device, host = need.pool_memory_bytes_per_process, pool.host_bytes_per_process(spec.resources.processes_per_node)
    found = []
    if device is not None and need.memory_bytes_per_process > device:
        remedy = "a smaller sequence_length" if spec.evaluation is not None else "activation_checkpointing full"
        detail = (
            f"{need.num_parameters:,} parameters over {need.processes} processes need about "
            f"{_gib(need.memory_bytes_per_process)} each, with micro-batches of the smallest size allowed; pool "
            f"{pool.name} has {_gib(device)} per process. "
            f"Take a smaller model, more nodes, {remedy}, or micro_batch_sequences auto"
        )
        found.append(FieldProblem("/training/model", "does_not_fit", detail))
    if pool.accelerator != "cpu" and need.host_bytes_per_process > host:
        if spec.evaluation is not None:
            field, detail = "/training/model", "loading the largest matrix of the model needs about "
            detail += f"{_gib(need.host_bytes_per_process)} of host memory per process"
            remedy = "Take fewer processes per node"
        else:
            field, remedy = "/training/optimizer/offload", "Take more nodes, or turn offload off"
            detail = f"optimizer state in host memory needs about {_gib(need.host_bytes_per_process)} per process"
        detail += f"; nodes of pool {pool.name} have {_gib(host)} per process. {remedy}"
        found.append(FieldProblem(field, "does_not_fit", detail))
    return found


def _with_smallest_micro_batches(training: TrainingSpec) -> TrainingSpec:
    if training.parallelism.micro_batch_sequences != "auto":
        return training
    parallelism = training.parallelism.model_copy(update={"micro_batch_sequences": 1})
    return training.model_copy(update={"parallelism": parallelism})


def resolve(spec: JobSpec, pool: PoolShape) -> JobSpec:
    """Return the spec with precision and parallelism `auto` replaced by what fits the pool's accelerator. What depends
    on unknown facts stays `auto`; the trainer then decides by the device."""
    training = spec.training
    if training is None:
        return spec
    has_bf16 = accelerator_has_bf16(pool.accelerator)
    if has_bf16 is not None:
        training = training.with_precision(has_bf16=has_bf16)
    device = None if pool.accelerator == "cpu" else pool.device_bytes_per_process(spec.resources.processes_per_node)
    is_too_large = spec.resources.nodes > pool.nodes_of_jobs  # it is refused, whatever its mesh
    if pool.accelerator == "cpu" or (device is not None and not is_too_large):
        training = resolve_parallelism(training, training.tokenizer.vocab_size, spec.resources, device, spec.evaluation)
    return spec.model_copy(update={"training": training})


def warnings(spec: JobSpec, pool: PoolShape) -> list[FieldProblem]:
    """Return warnings about specs that work, but probably not as intended."""
    found = []
    if spec.resources.processes_per_node > pool.slots_per_node:
        found.append(
            FieldProblem(
                "/resources/processes_per_node",
                "oversubscribed",
                f"{spec.resources.processes_per_node} processes share {pool.slots_per_node} slots of a node of pool "
                f"{pool.name}: they will be time-sliced",
            )
        )
    processes_per_node = spec.resources.processes_per_node
    if spec.training is not None and pool.device_bytes_per_process(processes_per_node) is None:
        found.append(
            FieldProblem(
                "/resources/accelerator",
                "accelerator_memory_unknown",
                f"the memory of the {pool.accelerator} accelerators of pool {pool.name} is not configured: whether "
                "the model fits was not checked. An administrator can set it: "
                "athanor cluster pool CLUSTER POOL --accelerator-memory-gib 80",
            )
        )
    slow = spec.training and fp32_cost(spec.training.precision, on_gpu=pool.accelerator != "cpu")
    if slow:
        found.append(FieldProblem("/training/precision", "slow_precision", slow))
    policy = spec.checkpoint
    saves = spec.trains and policy.every_minutes is None
    if saves and spec.training is not None and policy.every_steps > spec.training.steps:
        found.append(
            FieldProblem(
                "/checkpoint/every_steps",
                "no_checkpoint_before_the_end",
                f"every {policy.every_steps} steps in a run of {spec.training.steps}: a fault starts over",
            )
        )
    if spec.trains and isinstance(policy.shadow_every_steps, int):
        found += _shadows_too_large(estimate(spec, pool, with_smallest_micro_batches=True), spec, pool)
    return found


def _shadows_too_large(need: Estimate, spec: JobSpec, pool: PoolShape) -> list[FieldProblem]:
    """Return a warning if the nodes have no memory for the shadow checkpoints that the spec asks for."""
    host = pool.host_bytes_per_process(spec.resources.processes_per_node)
    if need.host_bytes_per_process + need.shadow_bytes_per_process <= host:
        return []
    detail = (
        f"shadow checkpoints take about {_gib(need.shadow_bytes_per_process)} per process beside "
        f"{_gib(need.host_bytes_per_process)}; nodes of pool {pool.name} have {_gib(host)} per process. The job runs "
        "without them if its nodes have too little memory available"
    )
    return [FieldProblem("/checkpoint/shadow_every_steps", "shadows_do_not_fit", detail)]


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
