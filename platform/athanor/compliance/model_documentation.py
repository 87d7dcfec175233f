"""Technical documentation of a model version, in the form of Annex XI of Regulation (EU) 2024/1689 (the AI Act).

What the platform has on record is filled in, with the record that shows it; what only people know is taken from the
model's card, by headings. Data, compute and energy are those of all jobs in which the weights were trained.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from athanor.accounts.selectors import Principal
from athanor.artifacts.lineage import Node
from athanor.artifacts.models import DataReport, ModelVersion
from athanor.budgets import costs
from athanor.budgets.models import UsageHour
from athanor.compliance.card_sections import card_sections
from athanor.compliance.training_history import SECONDS_PER_HOUR, Run, history_of, manifest_of
from athanor.telemetry.energy import Energy

REGULATION = "Regulation (EU) 2024/1689, Annex XI"


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


def documentation_of(principal: Principal, version: ModelVersion) -> Documentation:
    """Return the documentation of a version of a model of the caller's teams, as the records are now.

    Raise Conflict for an export of which the manifest is not what was registered.
    """
    history = history_of(principal, version)
    sections = card_sections(version.model.card)
    items = []
    for number, title, heading, facts in FORM:
        statement = sections.get(heading.casefold()) if heading else None
        items.append(Item(number, title, list(facts(version, history.runs)), heading, statement or None))
    return Documentation(version, items, history.limits)


def _of_job(run: Run, name: str, value: str | None, part: str = "") -> Fact:
    """Return a fact of a job. `part`: of its record, such as `/cost`."""
    return Fact(name, value, run.job.id, f"/jobs/{run.job.id}{part}")


def _of_model(version: ModelVersion, name: str, value: str) -> Fact:
    return Fact(name, value, version.artifact_id, f"/artifacts/{version.artifact_id}")


def _no_facts(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    yield from ()


def _registration(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    record = f"/models/{version.model_id}/versions/{version.number}"
    yield Fact("Registered", _moment(version.created_at), str(version), record)
    yield Fact("SHA-256 of its manifest", version.digest, str(version), record)
    for alias in sorted(version.aliases.all(), key=lambda each: each.name):
        name = f"Alias {alias.name} since"
        yield Fact(name, _moment(alias.moved_at), str(version), f"/models/{version.model_id}")


def _architecture(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    if not runs:
        yield _of_model(version, "Parameters in the files", f"{manifest_of(version.artifact).num_parameters:,}")
        return
    newest = runs[0]
    shape, vocabulary = newest.training.model.resolve(), newest.training.tokenizer.vocab_size
    yield _of_model(version, "Parameters in the exported files", f"{newest.manifest.num_parameters:,}")
    yield _of_job(newest, "Parameters of the model", f"{shape.num_parameters(vocabulary):,}")
    yield _of_job(newest, "Architecture", "decoder-only transformer" + (", mixture of experts" if shape.moe else ""))
    yield _of_job(newest, "Layers", f"{shape.num_layers}")
    yield _of_job(newest, "Hidden size", f"{shape.hidden_size}")
    yield _of_job(newest, "Attention heads, of keys and values", f"{shape.num_heads}, {shape.num_kv_heads}")
    if shape.moe:
        experts = f"{shape.moe.num_experts} experts a layer, {shape.moe.experts_per_token} for each token"
        yield _of_job(newest, "Experts", experts)


def _modality(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    if not runs:
        return
    newest = runs[0]
    yield _of_job(newest, "Input and output", "text, as tokens")
    yield _of_job(newest, "Vocabulary", f"{newest.training.tokenizer.vocab_size:,} tokens")
    yield _of_job(newest, "Length of the sequences in training", f"{newest.training.sequence_length:,} tokens")


def _files(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    for file in sorted(manifest_of(version.artifact).files, key=lambda each: each.path):
        digest = f", SHA-256 {file.plaintext_sha256}" if file.plaintext_sha256 else ""
        yield _of_model(version, f"File {file.path}", f"{file.size:,} bytes{digest}")


def _process(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    if not runs:
        yield _of_model(version, "Training", "imported, not trained here")
    for run in runs:
        training, optimizer = run.training, run.training.optimizer
        yield _of_job(run, "Job", run.job.name)
        yield _of_job(run, "SHA-256 of its resolved spec", run.job.spec_digest)
        yield _of_job(run, "Method", run.method)
        yield _of_job(run, "Steps in the model, of those in the spec", f"{run.manifest.step:,} of {training.steps:,}")
        if run.exporter is not None:
            exporter = f"{run.exporter.name} ({run.exporter.id})"
            yield _of_job(run, "Exported checkpoint, exported by", f"{run.exported_checkpoint}, {exporter}")
        sizes = f"{training.tokens_per_step:,}, {training.sequence_length:,}"
        yield _of_job(run, "Tokens of a step, of a sequence", sizes)
        rate = f"{optimizer.name}, learning rate {optimizer.learning_rate:g}, weight decay {optimizer.weight_decay:g}"
        yield _of_job(run, "Optimizer", rate)
        schedule = f"{training.schedule.name}, {training.schedule.warmup_steps:,} steps of warm-up"
        yield _of_job(run, "Learning-rate schedule", schedule)
        yield _of_job(run, "Precision", training.precision)
        yield _of_job(run, "Seed", f"{training.seed}")
        checkpoint = run.newest_checkpoint
        layout = None
        if checkpoint is not None:
            axes = [f"{axis} {size}" for axis, size in checkpoint.mesh.items() if size > 1]
            processes = "1 process" if checkpoint.world_size == 1 else f"{checkpoint.world_size} processes"
            layout = ", ".join([processes, *axes])
        which = "newest" if run.exporter is None else "exported"
        yield _of_job(run, f"Processes and mesh of the {which} checkpoint", layout, "/checkpoints")
        yield from _software(run)


def _software(run: Run) -> Iterator[Fact]:
    found = run.software
    yield _of_job(run, "Version of Athanor's trainer", found.get("trainer"), "/events")
    yield _of_job(run, "SHA-256 of the trainer's source", found.get("trainer_sha256"), "/events")
    yield _of_job(run, "PyTorch", run.torch_version, "/checkpoints" if run.newest_checkpoint else "/events")
    others = {"Python": found.get("python"), "CUDA": found.get("cuda"), "NCCL": found.get("nccl")}
    if found:
        versions = ", ".join(f"{name} {version}" for name, version in others.items() if version)
        yield _of_job(run, "Other programs", versions, "/events")


def _data(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    for run in runs:
        for dataset in run.datasets:
            yield from _of_dataset(run, dataset)


def _of_dataset(run: Run, node: Node) -> Iterator[Fact]:
    lineage = f"/lineage?of={node.id}"
    is_deleted = node.row.deletion_id is not None
    record = lineage if is_deleted else f"/datasets/{node.id}"
    preparations = lineage if is_deleted else f"{record}/preparations"
    yield Fact("Data set", f"{node.name} ({node.state})", node.id, lineage)
    yield Fact("Used by", f"{run.job.name} ({run.job.id})", node.id, f"/jobs/{run.job.id}")
    weight = run.weight_of(node)
    if weight is not None:
        yield Fact("Weight in the mixture", f"{weight:g}", node.id, f"/jobs/{run.job.id}")
    if node.digest is not None:
        yield Fact("Size", f"{node.row.size_bytes:,} bytes", node.id, record)
        yield Fact("SHA-256 of its manifest", node.digest, node.id, lineage)
    report = DataReport.objects.filter(dataset=node.id).order_by("-created_at", "-pk").first()
    if report is not None:
        kinds = f"{report.critical} kinds of critical findings, {report.warning} of warnings"
        yield Fact("Newest data report", kinds, report.id, f"/lineage?of={report.id}")
        yield Fact("SHA-256 of this report", report.digest, report.id, f"/lineage?of={report.id}")
    for form, manifest in run.tokenised(node):
        counts = f"{manifest.documents:,}; {manifest.train_tokens:,}; {manifest.validation_tokens:,}"
        yield Fact("Documents; tokens to train on; tokens held out", counts, form.id, preparations)
        yield Fact("SHA-256 of the manifest of these tokens", form.digest, form.id, f"/lineage?of={form.id}")


def _compute(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    for run in runs:
        progress = run.progress
        repeated = f"{progress.trained_tokens * run.flops_per_token:.3e}" if progress else None
        hours = f"{progress.trained_seconds / SECONDS_PER_HOUR:.3g} hours" if progress else None
        used = costs.of_job(run.job)["slot_seconds"] / SECONDS_PER_HOUR
        rows = UsageHour.objects.filter(job=run.job).order_by().values_list("accelerator", flat=True).distinct()
        yield _of_job(run, "Tokens of the steps in the model", f"{run.tokens:,}")
        yield _of_job(run, "FLOPs of these steps, forward and backward", f"{run.tokens * run.flops_per_token:.3e}")
        yield _of_job(run, "FLOPs of all steps, repeated ones too", repeated)
        yield _of_job(run, "Time of all steps", hours)
        yield _of_job(run, "Started, ended", f"{_moment(run.job.started_at)}, {_moment(run.job.finished_at)}")
        yield _of_job(run, "Slot time of all attempts", f"{used:.4g} slot hours", "/cost")
        yield _of_job(run, "Accelerator of these slots", ", ".join(sorted(rows)) or run.job.pool.accelerator, "/cost")
        yield _of_job(run, "Nodes, slots", f"{run.job.nodes}, {run.job.slots}")
    if len(runs) > 1:
        total = sum(run.tokens * run.flops_per_token for run in runs)
        record = f"/lineage?of={version.model_id}@{version.number}&direction=up"
        yield Fact("FLOPs of the steps in the model, all jobs", f"{total:.3e}", str(version), record)


def _energy(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    for run in runs:
        energy = run.energy
        yield _of_job(run, "Energy", _kwh(energy), "/efficiency")
        grams = f"{energy.grams / 1000:.4g} kg" if energy.carbon_slot_seconds else None
        if grams and energy.carbon_slot_seconds < energy.slot_seconds:
            grams += f", of {energy.carbon_slot_seconds / energy.slot_seconds:.0%} of the slot time"
        yield _of_job(run, "CO2", grams, "/efficiency")


def _kwh(energy: Energy) -> str | None:
    if energy.kwh is None:
        return None
    parts = f"{energy.measured_kwh:.4g} measured, {energy.estimated_kwh:.4g} estimated from the watts of the pool"
    unknown = f"; not known for {energy.unknown_slot_seconds / SECONDS_PER_HOUR:.4g} slot hours"
    return f"{energy.kwh:.4g} kWh: {parts}" + (unknown if energy.unknown_slot_seconds >= 1 else "")


def _evaluation(version: ModelVersion, runs: list[Run]) -> Iterator[Fact]:
    for name, value in sorted(manifest_of(version.artifact).metrics.items()):
        yield _of_model(version, f"Metric {name}, at the end of training", f"{value:.6g}")
    for row in version.evaluations:
        found = f"{row.value:.6g} on {row.source}, n {row.n:,}"
        if row.low is not None and row.high is not None:
            found += f", 95 % interval {row.low:.6g} to {row.high:.6g}"
        if row.trained_on:
            found += "; the model was trained on this data"
        elif row.trained_on is None:
            found += "; what the model was trained on is not on record"
        yield Fact(f"{row.name}.{row.metric}", found, str(version), f"/models/{version.model_id}/evaluations")


def _moment(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC" if time else "not recorded"


Facts = Callable[[ModelVersion, list[Run]], Iterator[Fact]]
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
