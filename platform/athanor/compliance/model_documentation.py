"""Technical documentation of a model version, in the form of Annex XI of Regulation (EU) 2024/1689 (the AI Act).

What the platform has on record is filled in, with the record that shows it; what only people know is taken from the
model's card, by headings. The weights of a version come from its job and from the jobs of its base models, so data,
compute and energy are those of this chain. A fork starts with weights of its own: what it was forked from is no part.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Q

from athanor.accounts.selectors import Principal
from athanor.artifacts import lineage, manifests
from athanor.artifacts.lineage import Direction, Kind, Node
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, ModelVersion
from athanor.budgets import costs
from athanor.budgets.models import UsageHour
from athanor.compliance.card_sections import card_sections
from athanor.jobs.models import Job
from athanor.specs.v1 import JobSpec
from athanor.telemetry.energy import Energy, by_job
from athanor.telemetry.models import Progress
from trainer.contract.manifest import DatasetManifest, ModelManifest
from trainer.contract.training import TrainingSpec

REGULATION = "Regulation (EU) 2024/1689, Annex XI"
MAX_BASES = 50
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Fact:
    """One thing on record. `of`: the id of what it describes. `value` is None if the platform does not know it.

    `record`: path of the operation that shows it.
    """

    name: str
    value: str | None
    of: str
    record: str


@dataclass(frozen=True)
class Item:
    """An item of the form. `heading`: of the section of the card that is its `statement`, None if facts are all of it.

    `statement` is None if the card has no such section, or an empty one.
    """

    number: str
    title: str
    facts: list[Fact]
    heading: str | None
    statement: str | None

    @property
    def is_missing(self) -> bool:
        """Return whether a statement is left to be written."""
        return self.heading is not None and self.statement is None


@dataclass(frozen=True)
class Documentation:
    """The documentation of a version. `limits`: sentences on what of its history is not on record."""

    version: ModelVersion
    items: list[Item]
    limits: list[str]


@dataclass(frozen=True)
class _Run:
    """A job of the chain: what it exported, and the data that it read."""

    job: Job
    artifact: Artifact
    manifest: ModelManifest
    training: TrainingSpec
    data: list[Node]

    @property
    def tokens(self) -> int:
        """Return the tokens of the steps that are in the export."""
        return self.training.batch_size_schedule.sequences_before(self.manifest.step) * self.training.sequence_length

    @property
    def flops_per_token(self) -> int:
        """Return the training FLOPs of one token."""
        return self.training.flops_per_token(self.training.tokenizer.vocab_size, causal=True)

    def fact(self, name: str, value: str | None, part: str = "") -> Fact:
        """Return a fact of the job. `part`: of its record, such as `/goodput`."""
        return Fact(name, value, self.job.id, f"/jobs/{self.job.id}{part}")


def documentation_of(principal: Principal, version: ModelVersion) -> Documentation:
    """Return the documentation of a version of a model of the caller's teams, as the records are now."""
    runs, limits = _chain(principal, version)
    sections = card_sections(version.model.card)
    items = []
    for number, title, heading, facts in FORM:
        statement = sections.get(heading.casefold()) if heading else None
        items.append(Item(number, title, list(facts(version, runs)), heading, statement or None))
    return Documentation(version, items, limits)


def _chain(principal: Principal, version: ModelVersion) -> tuple[list[_Run], list[str]]:
    """Return the jobs in which the weights were trained, the newest first, and what is not on record of them."""
    artifact: Artifact | None = version.artifact
    runs: list[_Run] = []
    while artifact is not None:
        job = Job.objects.select_related("pool__cluster", "team").get(pk=artifact.job_id)
        training = JobSpec.model_validate(job.resolved_spec).training
        assert training is not None, f"{job.id} has exported a model"
        manifest = manifests.of_stored(artifact)
        assert isinstance(manifest, ModelManifest)
        found = lineage.lineage_of(principal, job.id, Direction.UP, lineage.MAX_LIMIT, 1)
        data = [node for node in found.nodes if node.kind in (Kind.DATASET, Kind.PREPARED)]
        runs.append(_Run(job, artifact, manifest, training, data))
        base = training.model.base
        if base is None or training.model.is_new:
            return runs, []
        name = base.removeprefix("model:")
        artifact = Artifact.objects.filter(job__team_id=job.team_id, pk=name, deletion=None).first()
        if len(runs) == MAX_BASES:
            return runs, [
                f"The chain of base models is longer than {MAX_BASES}: what is before {base} is not included."
            ]
    return runs, [
        f"The weights of {base}, from which {runs[-1].job.name} ({runs[-1].job.id}) started, were not trained here or "
        "are deleted: architecture is that of this version, but data, compute and energy of the base are not on record."
    ]


def _registration(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    record = f"/models/{version.model_id}/versions/{version.number}"
    yield Fact("Registered", _moment(version.created_at), str(version), record)
    yield Fact("SHA-256 of its manifest", version.digest, str(version), record)
    for alias in sorted(version.aliases.all(), key=lambda each: each.name):
        name = f"Alias {alias.name} since"
        yield Fact(name, _moment(alias.moved_at), str(version), f"/models/{version.model_id}")


def _architecture(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    newest = runs[0]
    shape, vocabulary = newest.training.model.resolve(), newest.training.tokenizer.vocab_size
    yield Fact(
        "Parameters in the exported files", f"{newest.manifest.num_parameters:,}", newest.artifact.id,
        f"/artifacts/{newest.artifact.id}",
    )  # fmt: skip
    yield newest.fact("Parameters of the model", f"{shape.num_parameters(vocabulary):,}")
    yield newest.fact("Architecture", "decoder-only transformer" + (", mixture of experts" if shape.moe else ""))
    yield newest.fact("Layers", f"{shape.num_layers}")
    yield newest.fact("Hidden size", f"{shape.hidden_size}")
    yield newest.fact("Attention heads, of keys and values", f"{shape.num_heads}, {shape.num_kv_heads}")
    if shape.moe:
        experts = f"{shape.moe.num_experts} experts a layer, {shape.moe.experts_per_token} for each token"
        yield newest.fact("Experts", experts)


def _modality(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    newest = runs[0]
    yield newest.fact("Input and output", "text, as tokens")
    yield newest.fact("Vocabulary", f"{newest.training.tokenizer.vocab_size:,} tokens")
    yield newest.fact("Length of the sequences in training", f"{newest.training.sequence_length:,} tokens")


def _files(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    newest = runs[0]
    for file in sorted(newest.manifest.files, key=lambda each: each.path):
        yield Fact(f"File {file.path}", f"{file.size:,} bytes", newest.artifact.id, f"/artifacts/{newest.artifact.id}")


def _process(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    for run in runs:
        training, optimizer = run.training, run.training.optimizer
        yield run.fact("Job", run.job.name)
        yield run.fact("SHA-256 of its resolved spec", run.job.spec_digest)
        yield run.fact("Method", _method(training))
        yield run.fact("Steps in the model, of those in the spec", f"{run.manifest.step:,} of {training.steps:,}")
        yield run.fact("Tokens per step, of a sequence", f"{training.tokens_per_step:,}, {training.sequence_length:,}")
        rate = f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, weight decay {optimizer.weight_decay:g}"
        yield run.fact("Optimizer", rate)
        schedule = f"{training.schedule.name}, {training.schedule.warmup_steps:,} steps of warm-up"
        yield run.fact("Learning-rate schedule", schedule)
        yield run.fact("Precision", training.precision)
        yield run.fact("Seed", f"{training.seed}")
        checkpoint = Checkpoint.objects.filter(attempt=run.artifact.attempt_id).order_by("-step").first()
        world = f"{checkpoint.manifest['world_size']} processes, {_mesh(checkpoint.manifest)}" if checkpoint else None
        yield run.fact("Parallel layout of the newest checkpoint", world, "/checkpoints")
        version_of_torch = checkpoint.manifest["torch_version"] if checkpoint else None
        yield run.fact("PyTorch", version_of_torch, "/checkpoints")


def _method(training: TrainingSpec) -> str:
    start = "from scratch" if training.model.is_new else f"from {training.model.base}"
    formats = sorted({part.format for part in training.data.parts})
    aim = training.preference.loss if training.preference else f"next-token prediction on data of format {formats[0]}"
    if len(formats) > 1 and not training.preference:
        aim = f"next-token prediction on data of formats {', '.join(formats)}"
    trained = f"adapters of rank {training.lora.rank} (LoRA)" if training.lora else "all weights"
    return f"{aim}, {start}, {trained}"


def _mesh(manifest: dict[str, Any]) -> str:
    axes = [f"{axis} {size}" for axis, size in manifest["mesh"].items() if size > 1]
    return ", ".join(axes) or "no axis is divided"


def _data(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    for run in runs:
        weights = {part.source: part.weight for part in run.training.data.parts}
        for node in run.data:
            yield from (_of_dataset if node.kind is Kind.DATASET else _of_tokens)(node, run, weights)


def _of_dataset(node: Node, run: _Run, weights: dict[str, float]) -> Iterator[Fact]:
    record = f"/datasets/{node.id}"
    yield Fact("Data set", f"{node.name} ({node.state})", node.id, record)
    yield Fact("Used by", f"{run.job.name} ({run.job.id})", node.id, f"/jobs/{run.job.id}")
    source = f"dataset:{node.name}" if node.row.origin == Dataset.Origin.SEALED else node.name
    if len(weights) > 1 and source in weights:
        yield Fact("Weight in the mixture", f"{weights[source]:g}", node.id, f"/jobs/{run.job.id}")
    stored = node.state in ("stored", "deleted", "purged")
    yield Fact("Size", f"{node.row.size_bytes:,} bytes" if stored else None, node.id, record)
    yield Fact("Created", _moment(node.row.created_at), node.id, record)
    yield Fact("SHA-256 of its manifest", node.digest, node.id, f"/lineage?of={node.id}")


def _of_tokens(node: Node, run: _Run, weights: dict[str, float]) -> Iterator[Fact]:
    record = f"/lineage?of={node.id}"
    manifest = DatasetManifest.model_validate(node.row.manifest)
    yield Fact("Tokenised data", node.name, node.id, record)
    yield Fact("Documents", f"{manifest.documents:,}", node.id, f"/datasets/{node.row.dataset_id}/preparations")
    counts = f"{manifest.train_tokens:,}, {manifest.validation_tokens:,}"
    yield Fact("Tokens to train on, held out", counts, node.id, f"/datasets/{node.row.dataset_id}/preparations")
    yield Fact("SHA-256 of its manifest", node.digest, node.id, record)


def _compute(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    for run in runs:
        progress = Progress.objects.filter(job=run.job).first()
        yield run.fact("Tokens of the steps in the model", f"{run.tokens:,}")
        yield run.fact("FLOPs of these steps, forward and backward", f"{run.tokens * run.flops_per_token:.3e}")
        reported = progress.trained_tokens * run.flops_per_token if progress and progress.trained_tokens else None
        yield run.fact("FLOPs of all steps, repeated ones too", None if reported is None else f"{reported:.3e}")
        seconds = progress.trained_seconds if progress and progress.trained_seconds else None
        yield run.fact("Time of these steps", None if seconds is None else f"{seconds / SECONDS_PER_HOUR:.3g} hours")
        yield run.fact("Started, ended", f"{_moment(run.job.started_at)}, {_moment(run.job.finished_at)}")
        used = costs.of_job(run.job)["slot_seconds"]
        yield run.fact("Slot time, of all attempts", f"{used / SECONDS_PER_HOUR:.4g} slot hours", "/cost")
        rows = UsageHour.objects.filter(job=run.job).order_by().values_list("accelerator", flat=True).distinct()
        yield run.fact("Hardware", ", ".join(sorted(rows)) or run.job.pool.accelerator, "/cost")
        yield run.fact("Nodes, slots", f"{run.job.nodes}, {run.job.slots}")
    if len(runs) > 1:
        total = sum(run.tokens * run.flops_per_token for run in runs)
        record = f"/lineage?of={version.model_id}@{version.number}&direction=up"
        yield Fact("FLOPs of the steps in the model, all jobs", f"{total:.3e}", str(version), record)


def _energy(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    for run in runs:
        energy = Energy()
        for each in by_job(Q(job=run.job)).values():
            energy.add(each)
        yield run.fact("Energy", _kwh(energy), "/efficiency")
        grams = f"{energy.grams / 1000:.4g} kg" if energy.carbon_slot_seconds else None
        if grams and energy.carbon_slot_seconds < energy.slot_seconds:
            grams += f", of {energy.carbon_slot_seconds / energy.slot_seconds:.0%} of the slot time"
        yield run.fact("CO2", grams, "/efficiency")


def _kwh(energy: Energy) -> str | None:
    if energy.kwh is None:
        return None
    parts = f"{energy.measured_kwh:.4g} measured, {energy.estimated_kwh:.4g} estimated from the watts of the pool"
    unknown = f"; not known for {energy.unknown_slot_seconds / SECONDS_PER_HOUR:.4g} slot hours"
    return f"{energy.kwh:.4g} kWh: {parts}" + (unknown if energy.unknown_slot_seconds > 1 else "")


def _evaluation(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    newest = runs[0]
    for name, value in sorted(newest.manifest.metrics.items()):
        yield Fact(f"Metric {name}", f"{value:.6g}", newest.artifact.id, f"/artifacts/{newest.artifact.id}")


def _no_facts(version: ModelVersion, runs: list[_Run]) -> Iterator[Fact]:
    yield from ()


def _moment(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC" if time else "not recorded"


Facts = Callable[[ModelVersion, list[_Run]], Iterator[Fact]]
FORM: tuple[tuple[str, str, str | None, Facts], ...] = (
    ("1.1(a)", "Intended tasks, and systems that it can be part of", "Intended use", _no_facts),
    ("1.1(b)", "Acceptable use", "Acceptable use", _no_facts),
    ("1.1(c)", "Release and distribution", "Release", _registration),
    ("1.1(d)", "Architecture and number of parameters", None, _architecture),
    ("1.1(e)", "Modality and format of inputs and outputs", None, _modality),
    ("1.1(f)", "Licence", "Licence", _no_facts),
    ("1.2(a)", "Means to integrate it into systems", "Integration", _files),
    ("1.2(b)", "Design, training process and choices", "Design choices", _process),
    ("1.2(c)", "Data: origin, selection, measures against unsuitable data and bias", "Data", _data),
    ("1.2(d)", "Compute and training time", None, _compute),
    ("1.2(e)", "Energy", None, _energy),
    ("2.1", "Evaluation", "Evaluation", _evaluation),
    ("2.2", "Adversarial testing and adaptations", "Adversarial testing", _no_facts),
    ("2.3", "Architecture of the system", "System architecture", _no_facts),
)
"""The items of the Annex: number, title in our words, heading in the model's card, and what is on record.

Section 2 is for models with systemic risk only.
"""
