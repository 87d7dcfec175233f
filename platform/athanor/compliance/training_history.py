"""The jobs in which the weights of a model's version were trained: its own, and those of its base models.

An imported model was not trained here: what it was made of is not on record, and the limits of the history say so.

A fork starts with weights of its own: what it was forked from is no part. Nor is a base of which a job takes only the
shape and the tokenizer.
"""

import hashlib
from dataclasses import dataclass

from django.db.models import Q

from athanor.accounts.selectors import Principal
from athanor.artifacts import lineage, manifests
from athanor.artifacts.lineage import Direction, Kind, Node
from athanor.artifacts.models import Artifact, Checkpoint, ModelVersion, of_teams
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.specs.v1 import JobSpec
from athanor.telemetry.energy import Energy, by_job
from athanor.telemetry.models import Progress
from trainer.contract.events import SOFTWARE_FOUND
from trainer.contract.manifest import CheckpointManifest, DatasetManifest, ModelManifest
from trainer.contract.training import TrainingSpec

MAX_RUNS = 50
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Run:
    """A training: what was exported, and the data sets and tokenised data that it read (nodes of its lineage).

    `job`: that trained. `exporter`: the job that exported one of its checkpoints, None if the training did.
    `attempt`: that computed the exported weights.
    """

    job: Job
    attempt: Attempt
    exporter: Job | None
    artifact: Artifact
    manifest: ModelManifest
    training: TrainingSpec
    data: list[Node]

    @property
    def method(self) -> str:
        """Return how it trained, in words."""
        start = "from scratch" if self.training.model.is_new else f"from {self.training.model.base}"
        formats = ", ".join(sorted({part.format for part in self.training.data.parts}))
        preference, lora, ema = self.training.preference, self.training.lora, self.training.ema
        aim = preference.loss.upper() if preference else "next-token prediction"
        trained = f"adapters of rank {lora.rank} (LoRA)" if lora else "all weights"
        averaged = f", averaged over steps (EMA, decay {ema.decay:g})" if ema else ""
        return f"{aim} on data of format {formats}, {start}, {trained}{averaged}"

    @property
    def tokens(self) -> int:
        """Return the tokens of the steps that are in the export."""
        return self.training.batch_size_schedule.sequences_before(self.manifest.step) * self.training.sequence_length

    @property
    def flops_per_token(self) -> int:
        """Return the training FLOPs of one token."""
        return self.training.flops_per_token(self.training.tokenizer.vocab_size, causal=True)

    @property
    def progress(self) -> Progress | None:
        """Return what the job has reported, None if it has reported no step."""
        return Progress.objects.filter(job=self.job, trained_tokens__gt=0).first()

    @property
    def energy(self) -> Energy:
        """Return the energy of all attempts."""
        found = Energy()
        for each in by_job(Q(job=self.job)).values():
            found.add(each)
        return found

    @property
    def newest_checkpoint(self) -> CheckpointManifest | None:
        """Return the manifest of the checkpoint that was exported, or of the newest one of the attempt that exported
        the model, None if it has none."""
        rows = Checkpoint.objects.filter(attempt=self.attempt).order_by("-step", "-pk")
        row = rows.filter(pk=self.exported_checkpoint).first() if self.exported_checkpoint else rows.first()
        return CheckpointManifest.model_validate(row.manifest) if row else None

    @property
    def software(self) -> dict[str, str]:
        """Return the versions of the programs of the attempt that computed the weights, by the fields of the event;
        none if its trainer did not report them, as those of earlier versions."""
        events = JobEvent.objects.filter(job=self.job, type=SOFTWARE_FOUND, actor=self.attempt.id)
        event = events.order_by("-seq").first()
        return {name: str(value) for name, value in event.data.items() if value} if event else {}

    @property
    def torch_version(self) -> str | None:
        """Return the version of PyTorch; None if it is not on record."""
        checkpoint = self.newest_checkpoint
        return checkpoint.torch_version if checkpoint else self.software.get("torch")

    @property
    def exported_checkpoint(self) -> str | None:
        """Return the id of the checkpoint that another job than the training exported, None if none did."""
        return None if self.exporter is None else str(self.exporter.resolved_spec["export"]["checkpoint"])

    @property
    def datasets(self) -> list[Node]:
        """Return its data sets."""
        return [node for node in self.data if node.kind is Kind.DATASET]

    def tokenised(self, dataset: Node) -> list[tuple[Node, DatasetManifest]]:
        """Return the tokenised forms of a data set that it may have read."""
        forms = [node for node in self.data if node.kind is Kind.PREPARED and node.row.dataset_id == dataset.id]
        return [(node, DatasetManifest.model_validate(node.row.manifest)) for node in forms]

    def weight_of(self, dataset: Node) -> float | None:
        """Return the weight of a data set in the mixture, None if there is no mixture."""
        parts = self.training.data.parts
        found = [part.weight for part, each in zip(parts, self.job.dataset_ids, strict=True) if each == dataset.id]
        return found[0] if found and len(parts) > 1 else None


@dataclass(frozen=True)
class History:
    """The runs of a version, newest first; none of an imported one. `limits`: sentences on what is not on record."""

    runs: list[Run]
    limits: list[str]


def history_of(principal: Principal, version: ModelVersion) -> History:
    """Return the history of a version of a model of the caller's teams, as the records are now.

    Raise Conflict for an export of which the manifest is not what was registered.
    """
    if version.artifact.job_id is None:
        origin = f"{version} was imported, not trained here"
        return History([], [f"{origin}: the data, compute and energy of its training are not on record."])
    runs = [_run(principal, version.artifact)]
    while (base := runs[-1].training.model.base) is not None and not runs[-1].training.model.is_new:
        team, name = runs[-1].job.team_id, base.removeprefix("model:")
        artifact = Artifact.objects.select_related("job__team").filter(of_teams([team]), pk=name, deletion=None).first()
        job = f"{runs[-1].job.name} ({runs[-1].job.id})"
        if artifact is None:
            limit = f"{job} started from {base}, which another team trained or which is deleted: data, compute and "
            return History(runs, [f"{limit}energy of it are not included."])
        if artifact.job_id is None:
            digest = hashlib.sha256(manifest_of(artifact).authenticated_bytes()).hexdigest()
            origin = (
                f"{job} started from {base} (SHA-256 of its manifest {digest}), which was imported, not trained here"
            )
            return History(runs, [f"{origin}: data, compute and energy of it are not on record."])
        if len(runs) == MAX_RUNS:
            return History(runs, [f"{job} started from {base}: only the newest {MAX_RUNS} jobs are included."])
        runs.append(_run(principal, artifact))
    return History(runs, [])


def manifest_of(artifact: Artifact) -> ModelManifest:
    """Return the manifest of a model. Raise Conflict if it is not what was registered."""
    manifest = manifests.of_stored(artifact)
    assert isinstance(manifest, ModelManifest)
    return manifest


def _run(principal: Principal, artifact: Artifact) -> Run:
    assert artifact.job_id is not None, "an imported model has no run"
    job, exporter, attempt = Job.objects.select_related("pool").get(pk=artifact.job_id), None, artifact.attempt
    if (export := job.resolved_spec.get("export")) is not None:
        exporter = job
        saved = Checkpoint.objects.select_related("attempt", "job__pool").get(pk=export["checkpoint"])
        job, attempt = saved.job, saved.attempt
    assert attempt is not None, "of an export"
    training = JobSpec.model_validate(job.resolved_spec).training
    assert training is not None, f"{job.id} has exported a model"
    manifest = manifest_of(artifact)
    found = lineage.lineage_of(principal, job.id, Direction.UP, lineage.MAX_LIMIT, 1)
    return Run(
        job, attempt, exporter, artifact, manifest, training, [node for node in found.nodes if node.id != job.id]
    )
