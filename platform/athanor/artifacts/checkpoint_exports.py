"""Jobs that export a stored checkpoint of another job as a model.

The checkpoint is chosen when the job is submitted, and is part of its resolved spec, as the training of the job that
saved it is: the export is written as the end of that training writes one.
"""

from collections.abc import Mapping

from athanor.accounts.models import Team
from athanor.accounts.selectors import Principal
from athanor.artifacts import base_models, checkpoint_uses
from athanor.artifacts.checkpoint_retention import NEWEST_FIRST
from athanor.artifacts.models import Checkpoint, Dataset
from athanor.artifacts.services import INTACT
from athanor.core.errors import Conflict, FieldProblem, Invalid
from athanor.jobs.models import Attempt, Job
from athanor.jobs.selectors import jobs_of
from athanor.specs.v1 import ExportSpec, JobSpec, task_beside_training
from trainer.contract.export import CheckpointExport
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.parallelism import ParallelismSpec
from trainer.contract.training import ProcessLayout, TrainingSpec

JOB, STEP = "/export/job", "/export/step"
MAX_NAMED = 20
DOES: Mapping[str, str] = {
    "evaluation": "evaluates a model",
    "replay": "replays another job",
    "export": "exports a checkpoint of another job",
    "prepare": "prepares data",
}


def resolve(principal: Principal, team: Team, spec: JobSpec, export: ExportSpec) -> tuple[JobSpec, list[Dataset]]:
    """Return the spec of an export with the training of the checkpoint's job and the id of the checkpoint, and the data
    sets of that job, one for each part of its data: they have the tokenizer.

    Raise Invalid for a job or a checkpoint that cannot be exported.
    """
    if spec.training is not None or export.checkpoint is not None:
        detail = "training and export.checkpoint are set by the platform; leave them out"
        pointer = "/export/checkpoint" if export.checkpoint is not None else "/training"
        raise _refused("set_by_the_platform", detail, pointer)
    job = _find_job(principal, team, export.job)
    training = _training_of(job)
    row = _find_checkpoint(job, export.step)
    rows = {each.id: each for each in Dataset.objects.filter(pk__in=job.dataset_ids, deletion=None)}
    gone = [dataset_id for dataset_id in job.dataset_ids if dataset_id not in rows]
    if gone:
        detail = f"{job.id} was trained on {', '.join(gone)}, which is deleted, and its tokenizer with it"
        raise _refused("data_deleted", f"{detail}; restore it first: athanor trash list")
    try:
        base_models.key_of(job.team, training.model.base)
    except Invalid as error:
        raise _refused("base_deleted", f"the base model of {job.id} cannot be read: {error}") from error
    before = ProcessLayout.model_validate(
        {name: job.resolved_spec["resources"][name] for name in ("nodes", "processes_per_node")}
    )
    if before.world_size != spec.resources.world_size:
        training = training.model_copy(update={"parallelism": ParallelismSpec()})
    pinned = export.model_copy(update={"job": job.id, "checkpoint": row.id})
    resolved = spec.model_copy(update={"training": training, "export": pinned})
    return resolved, [rows[dataset_id] for dataset_id in job.dataset_ids]


def export_of(attempt: Attempt, export: ExportSpec) -> CheckpointExport:
    """Return the checkpoint that the attempt exports. Raise Conflict if it is erased."""
    row = checkpoint_uses.checkpoints_read_by(attempt.job).get(export.checkpoint or "")
    if row is None:
        raise Conflict(
            "checkpoint_erased", f"{export.checkpoint} of {export.job} is erased", remedy="export another checkpoint"
        )
    # As it is stored: the trainer verifies it, and reports one that is not authentic.
    return CheckpointExport(job_id=export.job, checkpoint=CheckpointManifest.model_validate(row.manifest))


def _find_job(principal: Principal, team: Team, reference: str) -> Job:
    rows = jobs_of(principal).filter(team=team)
    found = list(rows.filter(pk=reference)) or list(rows.filter(name=reference).order_by("-id")[: MAX_NAMED + 1])
    if not found:
        raise _refused("unknown_job", f"team {team.name} has no job {reference}; `athanor list` shows its jobs")
    if len(found) > 1:
        names = ", ".join(job.id for job in found[:MAX_NAMED])
        raise _refused("ambiguous_job", f"team {team.name} has several jobs named {reference}; give an id: {names}")
    return found[0]


def _training_of(job: Job) -> TrainingSpec:
    resolved = job.resolved_spec
    task = task_beside_training(resolved) or ("prepare" if resolved.get("prepare") else None)
    if task is not None:
        detail = f"{job.id} {DOES[task]} and has no checkpoints; name the job that trained the model"
        raise _refused("no_checkpoints", detail)
    return TrainingSpec.model_validate(resolved["training"])


def _find_checkpoint(job: Job, step: int) -> Checkpoint:
    rows = Checkpoint.objects.filter(job=job)
    found = rows.filter(INTACT, step=step).order_by(*NEWEST_FIRST).first()
    if found is not None:
        return found
    stored = sorted(set(rows.filter(INTACT).values_list("step", flat=True)), reverse=True)
    if stored:
        more = f" and {len(stored) - MAX_NAMED} earlier ones" if len(stored) > MAX_NAMED else ""
        remedy = f"stored intact checkpoints are those of the steps {', '.join(map(str, stored[:MAX_NAMED]))}{more}"
    else:
        remedy = f"{job.id} has no intact stored checkpoint; wait until it saves one, or name another job"
    unusable = rows.filter(step=step).order_by(*NEWEST_FIRST).first()
    if unusable is None:
        raise _refused("unknown_step", f"{job.id} has no checkpoint of step {step}; {remedy}", STEP)
    code, state = _state_of(unusable)
    raise _refused(code, f"{unusable.id}, the checkpoint of step {step} of {job.id}, {state}; {remedy}", STEP)


def _state_of(row: Checkpoint) -> tuple[str, str]:
    """Return the code and the description of why a checkpoint cannot be read."""
    if row.deletion_id is not None:
        return "checkpoint_deleted", f"is deleted (`athanor trash restore {row.deletion_id}` undoes it in its window)"
    if row.retired_at is not None:
        return "checkpoint_retired", "was retired, and its objects are deleted"
    if row.damaged_at is not None:
        return "checkpoint_damaged", f"is damaged: {row.damage or 'it cannot be read'}"
    return "checkpoint_diverged", "was left by its run because the loss diverged"


def _refused(code: str, detail: str, pointer: str = JOB) -> Invalid:
    return Invalid("invalid_spec", detail, remedy=detail, problems=(FieldProblem(pointer, code, detail),))
