"""The shapes of jobs on the wire."""

from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import OpenApiResponse, extend_schema_field, inline_serializer
from rest_framework import serializers

from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.reasons import explain
from athanor.jobs.states import AttemptStatus, Desired, Health, JobStatus
from athanor.telemetry.models import Progress
from trainer.contract.optimisation import step_sizes


def _values(members: Any) -> list[str]:
    return [member.value for member in members]


def page_of(name: str, item: type[serializers.Serializer[Any]]) -> Any:
    """The shape of one page of a list, as `api.pagination.listed` answers it; `name` is its OpenAPI component."""
    fields = {"items": item(many=True), "next_cursor": serializers.CharField(allow_null=True)}
    return inline_serializer(name, fields)


class NamedSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    name = serializers.CharField()


class ReasonSerializer(serializers.Serializer[Any]):
    code = serializers.CharField()
    message = serializers.CharField()
    remedy = serializers.CharField()
    blame = serializers.CharField()


class FieldProblemSerializer(serializers.Serializer[Any]):
    pointer = serializers.CharField(help_text="JSON pointer into what was sent")
    code = serializers.CharField()
    detail = serializers.CharField()


class ProblemSerializer(serializers.Serializer[Any]):
    """RFC 9457 problem+json."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    remedy = serializers.CharField(required=False)
    request_id = serializers.CharField()
    errors = FieldProblemSerializer(many=True, required=False)  # type: ignore[assignment] # a field, which DRF takes off the class


def _problem(description: str) -> OpenApiResponse:
    return OpenApiResponse(ProblemSerializer, description=description)


# What any endpoint may answer besides its own answers.
PROBLEMS: dict[Any, Any] = {
    (status, "application/problem+json"): _problem(description)
    for status, description in {
        400: "the body is not what its Content-Type says",
        401: "no valid token or session",
        403: "your role, or your token's scopes, do not allow it",
        404: "not there, or not yours to see",
        406: "only JSON is answered here",
        408: "the body did not arrive in time",
        409: "not in the state that it is in, or the same request is in progress; see detail",
        412: "it has changed since you read it (If-Match)",
        413: "the body is larger than the limit of this address",
        415: "a body of this Content-Type is not taken",
        422: "the request cannot be used; see errors",
        429: "too many requests; Retry-After says when to come back",
        503: "a part of the platform is away; Retry-After says when to come back",
    }.items()
}


class ProgressSerializer(serializers.Serializer[Any]):
    step = serializers.IntegerField(help_text="finished optimiser steps")
    steps_total = serializers.IntegerField()
    tokens_seen = serializers.IntegerField()
    loss = serializers.FloatField(allow_null=True)
    validation_loss = serializers.FloatField(allow_null=True)
    tokens_per_second = serializers.FloatField(allow_null=True)
    mfu = serializers.FloatField(allow_null=True, help_text="causal attention counted; null where no peak is known")
    eta_seconds = serializers.FloatField(allow_null=True)
    phase = serializers.CharField(allow_blank=True)
    updated_at = serializers.DateTimeField()


class EventSerializer(serializers.Serializer[JobEvent]):
    seq = serializers.IntegerField(help_text="within the job, from 1 without gaps")
    type = serializers.CharField()
    time = serializers.DateTimeField()
    actor = serializers.CharField()
    message = serializers.CharField(allow_blank=True)
    data = serializers.JSONField()  # type: ignore[assignment] # a field, which DRF takes off the class
    request_id = serializers.CharField(allow_blank=True)
    job_id = serializers.CharField()
    team_seq = serializers.IntegerField(
        allow_null=True, help_text="within the team, in the order of commits; null for a moment after the commit"
    )


class BeforeAfterSerializer(serializers.Serializer[Any]):
    before = serializers.FloatField()
    after = serializers.FloatField()


class TimingsSerializer(serializers.Serializer[Any]):
    queued_seconds = serializers.FloatField()
    startup = serializers.DictField(child=serializers.FloatField())
    training_seconds = serializers.FloatField(allow_null=True)
    evaluation_seconds = serializers.FloatField(allow_null=True)
    checkpoint_seconds = serializers.FloatField(allow_null=True)
    export_seconds = serializers.FloatField(allow_null=True)


class LinksSerializer(serializers.Serializer[Any]):
    self = serializers.CharField()
    events = serializers.CharField()
    metrics = serializers.CharField()
    logs = serializers.CharField()
    checkpoints = serializers.CharField()
    artifacts = serializers.CharField()


class AttemptSerializer(serializers.Serializer[Attempt]):
    id = serializers.CharField()
    number = serializers.IntegerField()
    status = serializers.ChoiceField(choices=_values(AttemptStatus))
    reason = serializers.SerializerMethodField()
    cluster = serializers.CharField(source="job.pool.cluster.name")
    native_state = serializers.CharField(allow_blank=True)
    native_reason = serializers.CharField(allow_blank=True)
    phase = serializers.CharField(allow_blank=True, help_text="how far it is there: pending, starting, running, ending")
    explanation = serializers.CharField(allow_blank=True, help_text="what that means, in a sentence")
    expected_start_at = serializers.DateTimeField(allow_null=True, help_text="the cluster's own estimate")
    nodes = serializers.ListField(
        source="native_nodes", child=serializers.CharField(), help_text="where it runs or ran"
    )
    exit_status = serializers.IntegerField(allow_null=True)
    launched_at = serializers.DateTimeField(allow_null=True, help_text="when its processes could begin")
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(source="ended_at", allow_null=True)
    last_step = serializers.SerializerMethodField()

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, attempt: Attempt) -> dict[str, str] | None:
        return explain(attempt.reason, attempt.reason_detail, trains=attempt.job.resolved_spec["training"] is not None)

    def get_last_step(self, attempt: Attempt) -> int | None:
        return attempt.end_report["last_step"] if attempt.end_report else None


class JobSummarySerializer(serializers.Serializer[Job]):
    """A job as lists show it."""

    id = serializers.CharField()
    name = serializers.CharField()
    team = NamedSerializer()
    project = serializers.CharField()
    labels = serializers.DictField(child=serializers.CharField())
    priority = serializers.CharField(source="resolved_spec.priority")
    status = serializers.ChoiceField(choices=_values(JobStatus))
    desired = serializers.ChoiceField(choices=_values(Desired))
    reason = serializers.SerializerMethodField()
    health = serializers.ChoiceField(choices=_values(Health))
    cluster = serializers.CharField(source="pool.cluster.name")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    updated_at = serializers.DateTimeField()
    created_by = serializers.CharField(source="created_by.username")
    forked_from = serializers.CharField(source="forked_from_id", allow_null=True)
    attempt_count = serializers.SerializerMethodField()
    progress = serializers.SerializerMethodField()
    validation_loss = serializers.SerializerMethodField()
    warnings = FieldProblemSerializer(many=True)
    links = serializers.SerializerMethodField()

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, job: Job) -> dict[str, str] | None:
        return explain(job.reason, job.reason_detail, trains=job.resolved_spec["training"] is not None)

    def get_attempt_count(self, job: Job) -> int:
        return len(job.attempts.all())

    @extend_schema_field(ProgressSerializer(allow_null=True))
    def get_progress(self, job: Job) -> dict[str, Any] | None:
        return progress_of(job)

    @extend_schema_field(BeforeAfterSerializer(allow_null=True))
    def get_validation_loss(self, job: Job) -> dict[str, float] | None:
        progress = _progress(job)
        if progress is None or progress.validation_first is None or progress.validation_last is None:
            return None
        return {"before": progress.validation_first, "after": progress.validation_last}

    @extend_schema_field(LinksSerializer)
    def get_links(self, job: Job) -> dict[str, str]:
        base = f"/api/v1/jobs/{job.id}"
        parts = ("events", "metrics", "logs", "checkpoints", "artifacts")
        return {"self": base, **{part: f"{base}/{part}" for part in parts}}


class HolderSerializer(serializers.Serializer[Any]):
    team = serializers.CharField()
    slots = serializers.IntegerField()


class BlockerSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField(help_text="pool, quota, limit, budget, turn or hold")
    name = serializers.CharField(help_text="of the pool, node of the quota tree, or budget")
    lacking = serializers.IntegerField(help_text="how much of it is missing")
    held_by = HolderSerializer(many=True, help_text="whose jobs have what it lacks")
    own_jobs = serializers.ListField(child=serializers.CharField(), help_text="jobs of its own team among those")


class WaitSerializer(serializers.Serializer[Any]):
    """What admission last said of a waiting job."""

    blocker = BlockerSerializer(allow_null=True)
    unblocks = serializers.CharField(allow_blank=True, help_text="what would let it start")
    position = serializers.IntegerField(allow_null=True, help_text="among those that wait for its pool, from 1")
    of = serializers.IntegerField(allow_null=True, help_text="how many wait for its pool")
    starts_in_seconds = serializers.IntegerField(allow_null=True, help_text="from `at`: its reservation, at the latest")
    p50_seconds = serializers.IntegerField(allow_null=True, help_text="from `estimated_at`: as likely sooner as later")
    p90_seconds = serializers.IntegerField(allow_null=True, help_text="nine of ten such jobs start sooner")
    at = serializers.DateTimeField(allow_null=True)
    estimated_at = serializers.DateTimeField(allow_null=True)


def wait_of(job: Job) -> dict[str, Any] | None:
    """What WaitSerializer describes; None for a job that does not wait, or that admission has not looked at."""
    told = job.waiting
    if job.status != JobStatus.QUEUED.value or not told:
        return None
    blocker = told.get("blocker")
    return {
        "blocker": {"held_by": [], "own_jobs": [], **blocker} if blocker else None,
        "unblocks": told.get("unblocks", ""),
        "position": told.get("position") or None,
        **{name: told.get(name) for name in ("of", "starts_in_seconds", "p50_seconds", "p90_seconds")},
        **{name: _moment(told.get(name)) for name in ("at", "estimated_at")},
    }


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class JobSerializer(JobSummarySerializer):
    """A job in full."""

    attempts = AttemptSerializer(many=True)
    preemptions = serializers.IntegerField(help_text="how often its slots were reclaimed")
    timings = serializers.SerializerMethodField()
    spec = serializers.JSONField(help_text="as written")
    resolved_spec = serializers.JSONField(help_text="with every default filled in")
    submission = serializers.SerializerMethodField()
    wait = serializers.SerializerMethodField()

    @extend_schema_field(WaitSerializer(allow_null=True))
    def get_wait(self, job: Job) -> Any:
        return wait_of(job)

    @extend_schema_field(TimingsSerializer)
    def get_timings(self, job: Job) -> dict[str, Any]:
        progress = _progress(job)
        measured = progress.timings if progress else {}
        return {
            "queued_seconds": _seconds(job.created_at, job.admitted_at or job.finished_at),
            "startup": measured.get("startup", {}),
            "training_seconds": _seconds(job.started_at, job.finished_at) if job.started_at else None,
            "evaluation_seconds": measured.get("evaluation_seconds"),
            "checkpoint_seconds": measured.get("checkpoint_seconds"),
            "export_seconds": measured.get("export_seconds"),
        }

    def get_submission(self, job: Job) -> str | None:
        texts = [attempt.submission_text for attempt in job.attempts.all() if attempt.submission_text]
        return texts[-1] if texts else None


NO_ATTEMPTS = Attempt.objects.none()
NO_ATTEMPTS._result_cache = []  # seen once for all: no look at the database, nor at whether one is needed


def mark_as_new(job: Job) -> None:
    """A job that was made just now has neither attempts nor progress: save the look for them."""
    job._prefetched_objects_cache = {"attempts": NO_ATTEMPTS}  # type: ignore[attr-defined] # as prefetch_related fills it
    job._meta.get_field("progress").set_cached_value(job, None)


def progress_of(job: Job) -> dict[str, Any] | None:
    progress = _progress(job)
    if progress is None:
        return None
    training = job.resolved_spec["training"]
    if training is None:
        return None
    length = training["sequence_length"]
    sizes = step_sizes(training["tokens_per_step"], length, training.get("batch_ramp"))
    return progress_body(progress, training["steps"], sizes.before(max(progress.step, 0)) * length)


def progress_body(progress: Progress, steps_total: int, tokens_seen: int) -> dict[str, Any]:
    """What ProgressSerializer describes."""
    step = max(progress.step, 0)
    step_seconds = progress.values.get("time/step_seconds")
    return {
        "step": step,
        "steps_total": steps_total,
        "tokens_seen": tokens_seen,
        "loss": progress.values.get("train/loss"),
        "validation_loss": progress.validation_last,
        "tokens_per_second": progress.values.get("throughput/tokens_per_second"),
        "mfu": progress.values.get("throughput/mfu_causal"),
        "eta_seconds": (steps_total - step) * step_seconds if step_seconds else None,
        "phase": progress.phase,
        "updated_at": progress.updated_at.isoformat(),
    }


def _progress(job: Job) -> Progress | None:
    return getattr(job, "progress", None)


def _seconds(start: datetime | None, end: datetime | None) -> float:
    return round(((end or timezone.now()) - (start or timezone.now())).total_seconds(), 3)
