"""Replays: which segments of a finished training job are computed again, and the results that an attempt registers.

The segments are chosen when the replay is submitted, at random, and are part of its resolved spec: neither its attempts
nor those of the replayed job can choose them. A result belongs to a segment of the attempt's own job.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from athanor.accounts.models import Team
from athanor.artifacts import base_models
from athanor.artifacts.checkpoint_uses import checkpoints_read_by
from athanor.artifacts.models import Checkpoint, Dataset, ReplayedSegment
from athanor.artifacts.services import INTACT
from athanor.core.errors import Conflict, FieldProblem, Invalid
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import FINAL, JobStatus
from athanor.specs.v1 import JobSpec, PinnedSegment, ReplaySpec, task_beside_training
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.replay import FP32_TOLERANCE, TOLERANCE, Replay, ReplayResult, ReplaySegment
from trainer.contract.training import TrainingSpec

POINTER = "/replay/job"
KEEP_MORE = (
    "checkpoint.keep_last and checkpoint.keep_every_steps say how many a job retains; replay.from_start includes the "
    "steps before the first stored one"
)


def resolve(team: Team, spec: JobSpec, replay: ReplaySpec, job: Job | None) -> tuple[JobSpec, list[Dataset]]:
    """Return the spec of a replay with the training of the replayed job and the chosen segments, and the data sets of
    that job, one for each part of its data. `job`: that which the spec names, None if the team has none of this id.

    Raise Invalid for a job that cannot be replayed.
    """
    if spec.training is not None or replay.pinned is not None:
        detail = "training and replay.pinned are set by the platform; leave them out"
        raise _refused("set_by_the_platform", detail, "/replay/pinned" if replay.pinned is not None else "/training")
    if job is None:
        raise _refused("unknown_job", f"team {team.name} has no job {replay.job}; `athanor list` shows its jobs")
    training = _training_of(job)
    if JobStatus(job.status) not in FINAL:
        raise _refused("job_not_finished", f"{job.id} is {job.status}: replay it when it has ended, or cancel it first")
    rows = {row.id: row for row in Dataset.objects.filter(pk__in=job.dataset_ids, deletion=None)}
    gone = [dataset_id for dataset_id in job.dataset_ids if dataset_id not in rows]
    if gone:
        raise _refused("data_deleted", f"{job.id} was trained on {', '.join(gone)}, which is deleted; restore it first")
    try:
        base_models.key_of(job.team, training.model.base)
    except Invalid as error:
        detail = f"the base model of {job.id} cannot be read: {error}"
        raise _refused("base_deleted", detail) from error
    chosen: dict[str, Any] = {"pinned": _choose(job, replay)}
    if replay.tolerance is None:
        chosen["tolerance"] = FP32_TOLERANCE if training.precision == "fp32" else TOLERANCE
    resolved = spec.model_copy(update={"training": training, "replay": replay.model_copy(update=chosen)})
    return resolved, [rows[dataset_id] for dataset_id in job.dataset_ids]


def replay_of(attempt: Attempt, replay: ReplaySpec) -> Replay:
    """Return the segments that the attempt replays: those without a result. Raise Conflict if one was erased."""
    done = set(ReplayedSegment.objects.filter(job=attempt.job_id).values_list("number", flat=True))
    found = checkpoints_read_by(attempt.job)
    segments = []
    for number, pinned in enumerate(replay.pinned or ()):
        gone = [each for each in (pinned.start, pinned.end) if each is not None and each not in found]
        if gone:
            raise Conflict("checkpoint_erased", f"{gone[0]} of {replay.job} is erased", remedy="replay another job")
        if number not in done:
            start = None if pinned.start is None else _manifest(found[pinned.start])
            segments.append(ReplaySegment(number=number, start=start, end=_manifest(found[pinned.end])))
    accelerator = Job.objects.values_list("pool__accelerator", flat=True).get(pk=replay.job)
    return Replay(
        job_id=replay.job,
        segments=segments,
        is_same_accelerator=accelerator == attempt.job.pool.accelerator,
        tolerance=_tolerance_of(replay),
    )


def register(attempt: Attempt, result: ReplayResult) -> ReplayedSegment:
    """Store the result of a segment. Idempotent: the first one counts.

    Raise Conflict for a job that replays nothing, Invalid for a segment that it does not have.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        replay = JobSpec.model_validate(job.resolved_spec).replay
        if replay is None:
            raise Conflict("not_a_replay", f"{job.id} replays no job", remedy="submit a job with `replay`")
        pinned = replay.pinned or []
        if result.number >= len(pinned):
            raise _invalid(f"{job.id} has {len(pinned)} segments; there is none with the number {result.number}")
        if result.verdict == "equal" and (result.differing or not result.tensors):
            raise _invalid(f"a segment of which {result.differing} of {result.tensors} tensors differ is not equal")
        known = ReplayedSegment.objects.filter(job=job, number=result.number).first()
        if known is not None:
            return known
        segment = pinned[result.number]
        row = ReplayedSegment.objects.create(
            team_id=job.team_id,
            job=job,
            attempt=attempt,
            replayed_id=replay.job,
            start=segment.start or "",
            end=segment.end,
            first_step=segment.first_step,
            last_step=segment.last_step,
            tolerance=_tolerance_of(replay),
            **result.model_dump(),
        )
        facts = {
            "replayed": replay.job,
            "first_step": row.first_step,
            "last_step": row.last_step,
            "verdict": row.verdict,
            "because": row.because,
        }
        events.append(job, "replay.registered", actor=attempt.id, data=facts)
        job.save(update_fields=["event_seq", "updated_at"])
    return row


def is_complete(job: Job, replay: ReplaySpec) -> bool:
    """Return whether every segment of a replay has a result."""
    return ReplayedSegment.objects.filter(job=job).count() == len(replay.pinned or ())


def results_of(job: Job) -> QuerySet[ReplayedSegment]:
    """Return the results of a replay, and of all replays of a job, the newest replay first."""
    rows = ReplayedSegment.objects.filter(Q(job=job) | Q(replayed=job)).select_related("job", "replayed")
    return rows.order_by("-job_id", "number")


def segments_of(rows: Iterable[Checkpoint]) -> list[PinnedSegment]:
    """Return the segments between the checkpoints of one job, each with the next one that was computed from it, or from
    a copy of the state after it. The first begins before the first step.

    `rows`: with their attempts. Of checkpoints of the same steps, the newest attempt's is on the way to the result.
    """
    path: list[Checkpoint] = []
    for row in sorted(rows, key=lambda row: (row.attempt.number, row.generation, row.step)):
        while path and path[-1].step >= row.step:
            path.pop()
        path.append(row)
    found: list[PinnedSegment] = []
    before: Checkpoint | None = None
    for row in path:
        first_step = 0 if before is None else before.step
        start = None if before is None else before.id
        found.append(PinnedSegment(start=start, end=row.id, first_step=first_step, last_step=row.step))
        before = row
    return found


def _choose(job: Job, replay: ReplaySpec) -> list[PinnedSegment]:
    """Return the segments to replay, in the order of their steps."""
    rows = Checkpoint.objects.filter(INTACT, job=job).select_related("attempt")
    known = [each for each in segments_of(rows) if each.start is not None or replay.from_start]
    known = [each for each in known if each.last_step > each.first_step]
    if not known:
        raise _refused("too_few_checkpoints", f"{job.id} has {rows.count()} intact stored checkpoints; {KEEP_MORE}")
    chosen: Sequence[PinnedSegment] = random.SystemRandom().sample(known, min(replay.segments, len(known)))
    return sorted(chosen, key=lambda each: each.last_step)


def _training_of(job: Job) -> TrainingSpec:
    resolved = job.resolved_spec
    does = {
        "evaluation": "evaluates a model",
        "replay": "replays another job",
        "export": "exports a checkpoint",
        None: "",
    }[task_beside_training(resolved)]
    if does or not resolved.get("training"):
        raise _refused("not_replayable", f"{job.id} {does or 'trains nothing'}; name a job that trains a model")
    return TrainingSpec.model_validate(resolved["training"])


def _tolerance_of(replay: ReplaySpec) -> float:
    assert replay.tolerance is not None, "set by `resolve`"
    return replay.tolerance


def _manifest(row: Checkpoint) -> CheckpointManifest:
    """Return the manifest as it is stored: the trainer verifies it, and reports one that is not authentic."""
    return CheckpointManifest.model_validate(row.manifest)


def _refused(code: str, detail: str, pointer: str = POINTER) -> Invalid:
    return Invalid("invalid_spec", detail, remedy=detail, problems=(FieldProblem(pointer, code, detail),))


def _invalid(detail: str) -> Invalid:
    return Invalid("invalid_result", detail, remedy="register the results of the job's own segments")
