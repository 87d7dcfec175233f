"""From an assignment to everything the loop needs: model, optimizer, data, checkpoints, restored if there is one."""

import hashlib
from dataclasses import dataclass, field

import torch

from trainer.checkpoint.reader import load
from trainer.checkpoint.state import live_shards
from trainer.checkpoint.writer import CheckpointWriter, Identity
from trainer.contract.run import EndClass
from trainer.contract.sealing import Sealer
from trainer.contract.training import TrainingSpec
from trainer.data.loader import Loader, MicroBatch, RankShare, validation_batches
from trainer.data.sampler import Sampler, num_sequences
from trainer.data.shards import DatasetIndex
from trainer.errors import TrainerError
from trainer.metrics.reporter import Reporter
from trainer.models.decoder import Decoder, initialise
from trainer.optim.step import ShardOptimizer
from trainer.parallel.data import shard_over_data
from trainer.parallel.mesh import Mesh
from trainer.platform_client import Platform
from trainer.resilience.assignment import Assignment
from trainer.storage.base import Storage

LARGEST_LOGITS_BYTES = 256 * 2**20  # of one micro-batch in fp32, where its size is left to us


@dataclass
class Session:
    """One rank's part of a run, ready to train from `first_step` (0-based)."""

    assignment: Assignment
    mesh: Mesh
    reporter: Reporter
    platform: Platform
    storage: Storage
    sealer: Sealer
    index: DatasetIndex
    model: Decoder
    optimizer: ShardOptimizer
    loader: Loader
    validation: list[tuple[MicroBatch, int]]
    writer: CheckpointWriter
    first_step: int
    final_metrics: dict[str, float] = field(default_factory=dict)

    @property
    def training(self) -> TrainingSpec:
        return self.assignment.run.training


def build(assignment: Assignment, mesh: Mesh, reporter: Reporter) -> Session:
    """Collective: every rank builds alike. Raises TrainerError for a spec that these ranks cannot run."""
    run, training = assignment.run, assignment.run.training
    platform, storage = assignment.connection.connect(run)
    sealer = Sealer(assignment.job_key)
    index = DatasetIndex.read(assignment.dataset_folder)
    part = _rank_share(training, mesh, index.vocab_size)
    with reporter.phase("model", shown="model"):
        model = _make_model(training, index.vocab_size, mesh)
        optimizer = ShardOptimizer(model.named_parameters(), training.optimizer)
    if run.resume is not None:
        with reporter.phase("load", shown="load"):
            load(run.resume, live_shards(optimizer, mesh), mesh, storage, sealer, index.fingerprint)
    first_step = run.resume.data_position if run.resume is not None else 0
    sequences = num_sequences(index.train_tokens, training.sequence_length)
    sampler = Sampler(sequences, training.step_sizes, training.seed, index.fingerprint)
    full = training.step_sizes.full
    micro_batch = -(-full // mesh.world_size // part.num_micro_batches(full))
    identity = Identity(hashlib.sha256(training.model_dump_json().encode()).hexdigest(), index.fingerprint)
    return Session(
        assignment=assignment,
        mesh=mesh,
        reporter=reporter,
        platform=platform,
        storage=storage,
        sealer=sealer,
        index=index,
        model=model,
        optimizer=optimizer,
        loader=Loader(assignment.dataset_folder, sampler, part, training.sequence_length, mesh.device, first_step),
        validation=validation_batches(
            assignment.dataset_folder,
            training.evaluation.sequences,
            part,
            training.sequence_length,
            max(1, micro_batch),
        ),
        writer=CheckpointWriter(assignment, mesh, platform, storage, identity, reporter),
        first_step=first_step,
    )


def _make_model(training: TrainingSpec, vocab_size: int, mesh: Mesh) -> Decoder:
    torch.manual_seed(training.seed)
    model = Decoder(training.model.resolve(), vocab_size, training.sequence_length)
    initialise(model, training.seed)
    model.to(mesh.device)
    for block in model.blocks:
        block.recompute = training.activation_checkpointing == "full"
    if training.compile:
        for block in model.blocks:
            block.compile()
    shard_over_data(model, training, mesh)
    return model


def _rank_share(training: TrainingSpec, mesh: Mesh, vocab_size: int) -> RankShare:
    """Raises TrainerError where a step has fewer sequences than there are ranks."""
    sequences = training.step_sizes.fewest
    asked = training.parallelism.data
    if asked not in ("auto", mesh.world_size):
        raise TrainerError(
            EndClass.BAD_SPEC,
            f"training.parallelism.data {asked} differs from the {mesh.world_size} processes of the run; write auto",
        )
    if sequences < mesh.world_size:
        field = "tokens_per_step" if training.batch_ramp is None else "batch_ramp.start_tokens_per_step"
        raise TrainerError(
            EndClass.BAD_SPEC,
            f"training.{field} {sequences * training.sequence_length} is {sequences} sequences of "
            f"{training.sequence_length}, fewer than the {mesh.world_size} processes; raise it or use fewer of them",
        )
    size = training.parallelism.micro_batch_sequences
    if size == "auto":
        size = max(1, LARGEST_LOGITS_BYTES // (4 * vocab_size * training.sequence_length))
    return RankShare(mesh.rank, mesh.world_size, size)
