"""Build the training state of a rank from its assignment: model, optimizer, data, and the checkpoint to resume from."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.checkpoint.shadow import ShadowCheckpoints
from trainer.checkpoint.state import Shard, live_shards
from trainer.checkpoint.writer import CheckpointWriter, Identity
from trainer.client.platform import Platform
from trainer.contract.encryption import Encryptor
from trainer.contract.evaluation import EvaluationSettings
from trainer.contract.launch_plan import micro_batch_size, plan_mesh
from trainer.contract.micro_batch import find_largest_micro_batch
from trainer.contract.precision import fp32_cost
from trainer.contract.rollback import Rollback
from trainer.contract.run import EndClass, RunConfig
from trainer.contract.training import TrainingSpec
from trainer.data.cache import CorruptShard
from trainer.data.corpus import Corpus
from trainer.data.loader import Loader, RankShare, validation_batches
from trainer.data.shards import DatasetIndex
from trainer.data.source import Source
from trainer.errors import TrainerError
from trainer.export.folder import read_config
from trainer.export.read import StoredWeights
from trainer.models.decoder import Block, Decoder
from trainer.models.lora import add_adapters, is_adapter
from trainer.models.moe import MixtureOfExperts
from trainer.optim.param_groups import check_patterns
from trainer.optim.step import ShardOptimizer
from trainer.parallel.balance import ExpertBalancer
from trainer.parallel.layout import ParamLayout
from trainer.parallel.mesh import Mesh
from trainer.parallel.overlap import has_fused_matmuls
from trainer.parallel.parallelize import ParallelModel, freeze, parallelize_model, set_trained
from trainer.parallel.weights import Weights
from trainer.reporting.reporter import Reporter
from trainer.resilience.assignment import Assignment
from trainer.storage.base import Storage
from trainer.training.activation_checkpointing import apply_activation_checkpointing
from trainer.training.device import smallest_device_bytes
from trainer.training.evaluation import HeldOutSet, PromptSampler, make_held_out_set, make_names_unique
from trainer.training.kernel_report import attention_kernels
from trainer.training.precision import apply_precision
from trainer.training.reference import add_reference, compute_reference
from trainer.training.resume import Resumed, resume


@dataclass(frozen=True)
class FinalState:
    """What is exported: the steps done, and the metrics of then."""

    step: int
    metrics: dict[str, float]


@dataclass
class TrainState:
    """One rank's part of a run, ready to train."""

    assignment: Assignment
    mesh: Mesh
    reporter: Reporter
    platform: Platform
    storage: Storage
    encryptor: Encryptor
    index: DatasetIndex
    model: ParallelModel
    optimizer: ShardOptimizer
    balancer: ExpertBalancer
    loader: Loader
    validation: list[HeldOutSet]
    sampler: PromptSampler
    writer: CheckpointWriter
    shadows: ShadowCheckpoints
    part: RankShare
    resumed: Resumed
    final: FinalState | None = None
    """Set once training is over."""

    @property
    def training(self) -> TrainingSpec:
        """Return the training part of the spec."""
        return self.assignment.training

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Let the model compute with the average of its weights, where the run has one, and with its weights again at
        the end."""
        average, weights = self.optimizer.average, self.model.weights
        if average is None:
            yield
            return
        with average.exchanged():
            weights.sync_compute_copies()
            yield
        weights.sync_compute_copies()

    @property
    def first_step(self) -> int:
        """Return the number of the first step of this worker group, from 0."""
        return self.resumed.step


Restore = Callable[[RunConfig, ShadowCheckpoints, Sequence[Shard], Weights, Storage, Encryptor, str, Reporter], Resumed]


def build(
    assignment: Assignment, mesh: Mesh, reporter: Reporter, restore: Restore = resume, *, trains: bool = True
) -> TrainState:
    """Build this rank's state, and `restore` that to continue from; a collective. Raises TrainerError for a spec that
    these ranks cannot run. `trains`: compute what only training and its evaluations need."""
    run, training = assignment.run, assignment.training
    platform, storage = assignment.connection.connect(run)
    encryptor = Encryptor(assignment.job_key)
    index = DatasetIndex.read(assignment.dataset_folder)
    corpus = Corpus(assignment.sources, training, storage)
    for source in corpus.sources:
        source.on_corrupt = make_skip_reporter(reporter)
    assignment = _resolve_epochs(assignment, corpus, reporter)
    training = assignment.training
    mesh, part = _plan_mesh(training, mesh, index.vocab_size, assignment.largest_micro_batch)
    reporter.report_micro_batch(part.micro_batch)
    reporter.event(
        "settings.resolved",
        device=mesh.device.type,
        precision=training.precision,
        deterministic=torch.are_deterministic_algorithms_enabled(),
        attention=attention_kernels(training, mesh.sizes, mesh.device),
        compile=training.compile,
        micro_batch_sequences=part.micro_batch,
    )
    slow = fp32_cost(training.precision, on_gpu=mesh.device.type == "cuda")
    if slow is not None:
        reporter.event("precision.slow", because=slow)
    _report_long_sequences(assignment, reporter)
    if training.cuda_graphs and mesh.device.type != "cuda":
        reporter.event("cuda_graphs.unused", because=f"the device of this run is {mesh.device.type}, not cuda")
    if training.parallelism.tensor_overlap and not has_fused_matmuls(mesh):
        reporter.event(
            "tensor_overlap.unused", because="the tensor ranks are not on GPUs that can access each other's memory"
        )
    _report_eager_blocks(training, index.vocab_size, mesh, reporter)
    check_patterns(training.optimizer.groups, _parameter_names(training, index.vocab_size))
    with reporter.phase("model", heartbeat_phase="model"):
        torch.manual_seed(training.seed)
        load_shard = ShardLoader(open_base(assignment))
        model = parallelize_model(
            training, index.vocab_size, mesh, part.micro_batch, lambda stage: _prepare(stage, training, mesh),
            load_shard, sets_trained=False,
        )  # fmt: skip
        load_shard.set_expert_biases(model)
        optimizer = ShardOptimizer(model.weights.trainable, model.weights.layouts, training.optimizer, training.ema)
    validation, rollbacks, table = _validation(assignment, storage, part), _agreed_rollbacks(run, mesh), None
    if trains and training.preference is not None and training.preference.reference == "precomputed":
        with reporter.phase("reference", heartbeat_phase="model"):
            set_trained(model.weights, training, load_shard)
            table = compute_reference(model, corpus, training, part, rollbacks, reporter)
            validation = [add_reference(model, each, reporter) for each in validation]
    identity = Identity(hashlib.sha256(training.model_dump_json().encode()).hexdigest(), corpus.fingerprint)
    shards = live_shards(model.weights, optimizer)
    shadows = ShadowCheckpoints(assignment, mesh, identity, model.weights, shards, reporter)
    resumed = restore(run, shadows, shards, model.weights, storage, encryptor, corpus.fingerprint, reporter)
    if not resumed.is_restored:
        with reporter.phase("weights", heartbeat_phase="model"):
            set_trained(model.weights, training, load_shard)
            if optimizer.average is not None:
                optimizer.average.reset()
    return TrainState(
        assignment=assignment,
        mesh=mesh,
        reporter=reporter,
        platform=platform,
        storage=storage,
        encryptor=encryptor,
        index=index,
        model=model,
        optimizer=optimizer,
        balancer=ExpertBalancer(model.stages, mesh),
        loader=Loader(
            corpus,
            training.batch_size_schedule,
            part,
            mesh.device,
            resumed.step,
            rollbacks,
            None if table is None else table.of,
        ),
        validation=validation,
        sampler=PromptSampler(assignment, model),
        writer=CheckpointWriter(assignment, mesh, platform, storage, identity, reporter, part.micro_batch),
        shadows=shadows,
        part=part,
        resumed=resumed,
    )


class ShardLoader:
    """Reads the values that the parameters of this rank begin with from the base model, None without one."""

    def __init__(self, base: StoredWeights | None) -> None:
        self._base = base

    def __call__(self, place: ParamLayout) -> Tensor | None:
        """Return the values of a shard; None if they are not in the base model."""
        return self._base.part_of(place) if self._base is not None and not is_adapter(place.name) else None

    def set_expert_biases(self, model: ParallelModel) -> None:
        """Set the biases by which experts are balanced to those of the base model."""
        if self._base is not None:
            for name, balance in model.weights.expert_biases.items():
                balance.copy_(self._base.whole(name, tuple(balance.shape)))


def build_frozen(assignment: Assignment, mesh: Mesh) -> tuple[ParallelModel, RankShare]:
    """Return the base model, frozen, and this rank's share of data; a collective. Raises TrainerError for a spec that
    these ranks cannot run."""
    training = assignment.training
    vocab_size = training.tokenizer.vocab_size
    mesh, part = _plan_mesh(training, mesh, vocab_size, assignment.largest_micro_batch, assignment.run.evaluation)
    load_shard = ShardLoader(open_base(assignment))
    model = parallelize_model(
        training, vocab_size, mesh, part.micro_batch, lambda stage: _prepare(freeze(stage), training, mesh), load_shard
    )
    load_shard.set_expert_biases(model)
    return model, part


def why_not_compiled(block: Block, training: TrainingSpec, mesh: Mesh) -> str | None:
    """Return why torch cannot compile a block of the model, None if it can."""
    is_mixture, experts = isinstance(block.mlp, MixtureOfExperts), mesh.sizes.expert > 1
    if is_mixture and not experts and training.precision == "fp32":
        return "torch compiles the grouped products of experts in bf16 alone; set precision to bf16"
    if training.activation_checkpointing == "none" or block.recompute is None:
        return None  # what cannot be traced is left out
    if is_mixture and experts:
        return (
            "the ranks of the expert axis exchange as many rows as each needs, which torch cannot trace in layers "
            "that are recomputed; set activation_checkpointing to none"
        )
    if mesh.sizes.context > 1 and training.parallelism.context_attention == "ring":
        return (
            "torch cannot trace ring attention in a layer that is recomputed; set parallelism.context_attention to "
            "ulysses, or activation_checkpointing to none"
        )
    return None


def _report_eager_blocks(training: TrainingSpec, vocab_size: int, mesh: Mesh, reporter: Reporter) -> None:
    """Report blocks that are not compiled though the spec asks for it."""
    if not training.compile:
        return
    with torch.device("meta"):
        whole = Decoder(training.model.resolve(), vocab_size, training.sequence_length)
    apply_activation_checkpointing(whole, training)
    reasons = [why_not_compiled(block, training, mesh) for block in whole.blocks.values()]
    eager = [reason for reason in reasons if reason is not None]
    if eager:
        reporter.event("compile.partial", blocks=len(eager), of=len(reasons), because=eager[0])


def _agreed_rollbacks(run: RunConfig, mesh: Mesh) -> list[Rollback]:
    """Return the rollbacks that the first rank knows: the agents of two nodes may have asked at different times."""
    if run.layout.nodes == 1:
        return run.rollbacks
    store = mesh.open_store("build/")
    if mesh.rank == 0:
        store.set("rollbacks", json.dumps([each.model_dump() for each in run.rollbacks]))
    return [Rollback.model_validate(each) for each in json.loads(store.get("rollbacks"))]


def _resolve_epochs(assignment: Assignment, corpus: Corpus, reporter: Reporter) -> Assignment:
    training = assignment.training
    if training.epochs is None:
        return assignment
    sequences = corpus.sources[0].num_rows  # the only one: `epochs` is refused with several
    resolved = training.with_epochs(sequences)
    reporter.event(
        "steps.resolved", steps=resolved.steps, warmup_steps=resolved.schedule.warmup_steps, epochs=training.epochs,
        sequences=sequences,
    )  # fmt: skip
    return assignment.with_training(resolved)


def _report_long_sequences(assignment: Assignment, reporter: Reporter) -> None:
    """Report sequences that are longer than those the base model knows."""
    if assignment.base_folder is None or assignment.training.model.is_new:
        return
    length = assignment.training.sequence_length
    known = read_config(assignment.base_folder).get("max_position_embeddings", length)
    if known < length:
        because = (
            f"{assignment.training.model.base} knows {known} positions, and learns those beyond from this data alone; "
            f"lower training.sequence_length from {length} to {known}"
        )
        reporter.event("sequence.longer", sequence_length=length, base_length=known, because=because)


def _parameter_names(training: TrainingSpec, vocab_size: int) -> list[str]:
    """Return the names of all trained parameters of the complete model."""
    with torch.device("meta"):
        whole = Decoder(training.model.resolve(), vocab_size, training.sequence_length)
        if training.lora is not None:
            add_adapters(whole, training.lora)
    return [name for name, parameter in whole.named_parameters() if parameter.requires_grad]


def make_skip_reporter(reporter: Reporter) -> Callable[[str, CorruptShard], None]:
    """Return a callback that reports a skipped damaged shard."""

    def report_skipped(source: str, error: CorruptShard) -> None:
        reporter.event_once(error.name, "data.shard_skipped", source=source, shard=error.name, because=error.problem)

    return report_skipped


def _validation(assignment: Assignment, storage: Storage, part: RankShare) -> list[HeldOutSet]:
    """Held-out rows of every source."""
    training = assignment.training
    found = []
    for place in assignment.sources:
        source = Source(place, "validation", training.data, training.sequence_length, storage)
        batches = validation_batches(source, training.evaluation.sequences, part)
        found.append(make_held_out_set(place.name, source.index, batches))
        source.close()
    return make_names_unique(found)


def open_base(assignment: Assignment) -> StoredWeights | None:
    """Open the base model whose weights the model starts from; None without one.

    A resumed run needs it only with LoRA, or as a reference: a checkpoint contains the trained parameters, not the
    frozen ones.
    """
    training = assignment.training
    if assignment.base_folder is None or training.model.is_new:
        return None
    if assignment.run.resume is not None and training.lora is None and not training.has_reference:
        return None
    return StoredWeights(assignment.base_folder, training.model.resolve())


def _prepare(stage: Decoder, training: TrainingSpec, mesh: Mesh) -> None:
    """Apply the spec's computation settings to a stage, before it is sharded."""
    apply_activation_checkpointing(stage, training)
    apply_precision(stage, training, mesh)
    if training.compile:
        for block in stage.blocks.values():
            if why_not_compiled(block, training, mesh) is None:
                block.compile(mode="reduce-overhead" if training.cuda_graphs else None)
    if stage.head is not None:
        stage.head.z_loss = training.z_loss


def _plan_mesh(
    training: TrainingSpec,
    mesh: Mesh,
    vocab_size: int,
    largest: int | None,
    evaluation: EvaluationSettings | None = None,
) -> tuple[Mesh, RankShare]:
    """Return the mesh of the spec, and this rank's share of a step. The platform has checked both; the vocabulary
    is only known now. `evaluation`: of an evaluation job."""
    sizes = plan_mesh(training, vocab_size, mesh.world_size)
    if isinstance(sizes, list):
        problem = sizes[0]
        raise TrainerError(EndClass.BAD_SPEC, f"training.{problem.field.replace('/', '.')}: {problem.message}")
    mesh = mesh.with_sizes(sizes)
    bound = find_largest_micro_batch(training, sizes, vocab_size, smallest_device_bytes(mesh), evaluation)
    size = micro_batch_size(training, sizes, vocab_size, largest, bound)
    return mesh, RankShare(
        mesh.coordinate("replicate", "shard"), sizes.data, size, sizes.pipeline > 1, mesh.world_size // sizes.data
    )
