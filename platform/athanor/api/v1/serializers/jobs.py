"""Serializers of jobs, their attempts, events and progress."""

from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import (
    FieldProblemSerializer,
    NamedSerializer,
    ReasonSerializer,
    enum_values,
    page_serializer,
)
from athanor.api.v1.serializers.timeline import TimingsSerializer, serialize_totals
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.reasons import explain
from athanor.jobs.selectors import attempts_of, timeline_of
from athanor.jobs.states import AttemptStatus, Desired, Health, JobStatus
from athanor.jobs.timeline import total
from athanor.specs.v1 import is_training
from athanor.telemetry.models import Progress
from trainer.contract.optimisation import batch_size_schedule


class ProgressSerializer(serializers.Serializer[Any]):
    """Newest figures of a job's training."""

    step = serializers.IntegerField(help_text="Optimizer steps that were finished.")
    steps_total = serializers.IntegerField(help_text="Optimizer steps of the whole run.")
    tokens_seen = serializers.IntegerField(help_text="Tokens that the finished steps trained on.")
    loss = serializers.FloatField(
        allow_null=True, help_text="Training loss of the newest reported step. Null before the first."
    )
    validation_loss = serializers.FloatField(
        allow_null=True, help_text="Newest validation loss. Null before the first evaluation."
    )
    tokens_per_second = serializers.FloatField(
        allow_null=True,
        help_text="Newest throughput of the whole job, in tokens per second. Null until it is reported.",
    )
    mean_tokens_per_second = serializers.FloatField(
        allow_null=True,
        help_text=(
            "Mean throughput of the whole job, in tokens per second: tokens of all reported steps, repeated ones too, "
            "divided by their step time. Evaluations and checkpoints are no step time. Null until it is reported."
        ),
    )
    mfu = serializers.FloatField(
        allow_null=True,
        help_text=(
            "Newest model FLOPs utilisation as a fraction, with half of the attention matrix counted, against the "
            "peak of the accelerator in the run's precision. Null where that peak is not known."
        ),
    )
    mean_mfu = serializers.FloatField(
        allow_null=True, help_text="Model FLOPs utilisation at the mean throughput. Null where `mfu` is."
    )
    eta_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Remaining steps times the newest step time, in seconds. Null until a step time is reported, and "
        "while the job is not running.",
    )
    phase = serializers.CharField(
        allow_blank=True,
        help_text=(
            "What the trainer was doing at its last report, such as `training` or `evaluation`. Empty "
            "before the first report."
        ),
    )
    updated_at = serializers.DateTimeField(help_text="Time of the newest report, ISO 8601 in UTC.")


class EventSerializer(serializers.Serializer[JobEvent]):
    """Something that happened to a job."""

    seq = serializers.IntegerField(help_text="Number within the job, from 1 without gaps.")
    type = serializers.CharField(
        help_text=("Type of the event, dotted from general to special, such as `job.status` or `checkpoint.saved`.")
    )
    time = serializers.DateTimeField(help_text="Time of the event, ISO 8601 in UTC.")
    actor = serializers.CharField(
        help_text=(
            "Username of the person or service account that caused it, the part of the platform that "
            "did, or the id of the attempt that reported it."
        )
    )
    message = serializers.CharField(allow_blank=True, help_text="The event in words. May be empty.")
    data = serializers.JSONField(  # type: ignore[assignment] # a field, which DRF takes off the class
        help_text="Facts of the event as a JSON object; its fields depend on `type`."
    )
    request_id = serializers.CharField(
        allow_blank=True, help_text="Id of the request that caused it. Empty if none did."
    )
    job_id = serializers.CharField(help_text="Id of the job.")
    team_seq = serializers.IntegerField(
        allow_null=True,
        help_text="Number within the team, in the order of commits. Null for a moment after the commit.",
    )


class BeforeAfterSerializer(serializers.Serializer[Any]):
    """The first and the newest value of a measurement."""

    before = serializers.FloatField(help_text="First value that was measured.")
    after = serializers.FloatField(help_text="Newest value that was measured.")


class LinksSerializer(serializers.Serializer[Any]):
    """Paths of a job and of what belongs to it."""

    self = serializers.CharField(help_text="Path of the job.")
    events = serializers.CharField(help_text="Path of its events.")
    metrics = serializers.CharField(help_text="Path of its metrics.")
    logs = serializers.CharField(help_text="Path of its log.")
    checkpoints = serializers.CharField(help_text="Path of its checkpoints.")
    artifacts = serializers.CharField(help_text="Path of its artifacts.")


class AttemptSerializer(serializers.Serializer[Attempt]):
    """One submission of a job to its cluster."""

    id = serializers.CharField()
    number = serializers.IntegerField(help_text="Number within the job, from 1.")
    status = serializers.ChoiceField(
        choices=enum_values(AttemptStatus),
        help_text=(
            "`prepared` before the cluster has it, `submitted` while the cluster starts it, `running`, or `ended`."
        ),
    )
    reason = serializers.SerializerMethodField(help_text="Why it ended. Null while it has not.")
    cluster = serializers.CharField(source="job.pool.cluster.name", help_text="Name of the cluster.")
    native_state = serializers.CharField(
        allow_blank=True, help_text="State in the cluster's own terms. Empty if it has reported none."
    )
    native_reason = serializers.CharField(
        allow_blank=True, help_text="Reason in the cluster's own terms. Empty if it has reported none."
    )
    phase = serializers.CharField(
        allow_blank=True,
        help_text=(
            "Phase on the cluster: `pending` in its queue, `starting`, `running` or `ending`. Empty if it is not known."
        ),
    )
    explanation = serializers.CharField(
        allow_blank=True, help_text="What the cluster's state means, as a sentence. May be empty."
    )
    expected_start_at = serializers.DateTimeField(
        allow_null=True, help_text="The cluster's own estimate of the start, ISO 8601 in UTC. Null if it gives none."
    )
    nodes = serializers.ListField(
        source="native_nodes", child=serializers.CharField(), help_text="Names of the nodes that it runs or ran on."
    )
    exit_status = serializers.IntegerField(
        allow_null=True, help_text="Exit status of its processes. Null if it is not known."
    )
    launched_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Time at which its processes could start, after any queue of the cluster. Null before.",
    )
    started_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it began to run, ISO 8601 in UTC. Null before."
    )
    finished_at = serializers.DateTimeField(
        source="ended_at", allow_null=True, help_text="Time of its end, ISO 8601 in UTC. Null before."
    )
    last_step = serializers.SerializerMethodField(
        help_text="Last step that its final report names. Null without a final report."
    )

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, attempt: Attempt) -> dict[str, str] | None:
        """Return why the attempt ended, None while it has not."""
        return explain(attempt.reason, attempt.reason_detail, trains=attempt.job.resolved_spec["training"] is not None)

    def get_last_step(self, attempt: Attempt) -> int | None:
        """Return the last step of the final report, None without one."""
        return attempt.end_report["last_step"] if attempt.end_report else None


class JobSummarySerializer(serializers.Serializer[Job]):
    """A job in the short form of lists."""

    id = serializers.CharField()
    name = serializers.CharField(help_text="Name from the spec. Several jobs may have the same.")
    team = NamedSerializer(help_text="Team that the job belongs to.")
    project = serializers.CharField(help_text="Name of the project.")
    labels = serializers.DictField(child=serializers.CharField(), help_text="Labels from the spec, by key.")
    priority = serializers.CharField(source="resolved_spec.priority", help_text="Priority class from the spec.")
    status = serializers.ChoiceField(
        choices=enum_values(JobStatus),
        help_text=(
            "`queued` waits for admission; `admitted`, `dispatching` and `starting` lead to `running`; "
            "`pausing` saves a checkpoint, after which the job is `paused`; `stopping` ends it. Final: "
            "`succeeded`, `failed`, `cancelled`, and `expired` for a job that waited too long or missed "
            "its deadline."
        ),
    )
    desired = serializers.ChoiceField(
        choices=enum_values(Desired),
        help_text="What users last asked for: `run`, `pause` or `stop`. The status follows.",
    )
    reason = serializers.SerializerMethodField(help_text="Why the job waits or ended. Null if there is nothing to say.")
    health = serializers.ChoiceField(
        choices=enum_values(Health),
        help_text=(
            "`ok`, or `unknown` when a running job has not reported for too long. The other values are "
            "not used at present."
        ),
    )
    cluster = serializers.CharField(
        source="pool.cluster.name", help_text="Name of the cluster that the job was submitted to."
    )
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the first start, ISO 8601 in UTC. Null before."
    )
    finished_at = serializers.DateTimeField(allow_null=True, help_text="Time of the end, ISO 8601 in UTC. Null before.")
    updated_at = serializers.DateTimeField()
    created_by = serializers.CharField(
        source="created_by.username", help_text="Username of the person or service account that submitted it."
    )
    forked_from = serializers.CharField(
        source="forked_from_id",
        allow_null=True,
        help_text="Id of the job that it was forked or retried from. Null for others.",
    )
    attempt_count = serializers.SerializerMethodField(help_text="Number of attempts, the present one included.")
    ran_seconds = serializers.SerializerMethodField(
        help_text="Seconds that its ended attempts ran together, each from the time at which its processes could start."
    )
    running_since = serializers.SerializerMethodField(
        help_text="Time since which its present attempt has been running, ISO 8601 in UTC. Null if none is."
    )
    progress = serializers.SerializerMethodField(
        help_text=("Newest figures of the training. Null before the first report, and for jobs that only prepare data.")
    )
    validation_loss = serializers.SerializerMethodField(
        help_text="First and newest validation loss. Null until there are both."
    )
    warnings = FieldProblemSerializer(
        many=True,
        help_text="What was accepted at submission but is probably not intended, and why the evaluation that "
        "`output.evaluation` of the spec requests was refused.",
    )
    links = serializers.SerializerMethodField(help_text="Paths of the job and what belongs to it.")

    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(self, job: Job) -> dict[str, str] | None:
        """Return why the job waits or ended, None without a reason."""
        return job.explanation

    def get_attempt_count(self, job: Job) -> int:
        """Return the number of attempts."""
        return len(attempts_of(job))

    def get_ran_seconds(self, job: Job) -> float:
        """Return the seconds that ended attempts ran."""
        ended = [(each.launched_at, each.ended_at) for each in attempts_of(job)]
        return sum((end - start).total_seconds() for start, end in ended if start is not None and end is not None)

    def get_running_since(self, job: Job) -> datetime | None:
        """Return when the live attempt was launched, None without one."""
        return next((each.launched_at for each in attempts_of(job) if each.ended_at is None), None)

    @extend_schema_field(ProgressSerializer(allow_null=True))
    def get_progress(self, job: Job) -> dict[str, Any] | None:
        """Return the newest progress, None without one."""
        return serialize_progress(job)

    @extend_schema_field(BeforeAfterSerializer(allow_null=True))
    def get_validation_loss(self, job: Job) -> dict[str, float] | None:
        """Return the first and the newest validation loss, None until there are both."""
        progress = _progress(job)
        if progress is None or progress.validation_first is None or progress.validation_last is None:
            return None
        return {"before": progress.validation_first, "after": progress.validation_last}

    @extend_schema_field(LinksSerializer)
    def get_links(self, job: Job) -> dict[str, str]:
        """Return the paths of the job and of what belongs to it."""
        base = f"/api/v1/jobs/{job.id}"
        parts = ("events", "metrics", "logs", "checkpoints", "artifacts")
        return {"self": base, **{part: f"{base}/{part}" for part in parts}}


class HolderSerializer(serializers.Serializer[Any]):
    """Slots that the jobs of a team hold."""

    team = serializers.CharField(help_text="Name of the team.")
    slots = serializers.IntegerField(help_text="Slots that its jobs hold.")


class BlockerSerializer(serializers.Serializer[Any]):
    """What keeps a job from starting."""

    kind = serializers.CharField(
        help_text=(
            "`pool` (no free slots), `quota`, `limit` (of a node of the quota tree), `budget`, `turn` "
            "(another job is first) or `hold`."
        )
    )
    name = serializers.CharField(
        help_text="Name of the pool, quota node, budget or job. A job of another team is not named."
    )
    lacking = serializers.IntegerField(
        help_text="How much is missing: slots, jobs, or slot-seconds or millionths of the currency of a budget."
    )
    held_by = HolderSerializer(many=True, help_text="Teams whose jobs hold what is missing, at most 20, largest first.")
    own_jobs = serializers.ListField(
        child=serializers.CharField(), help_text="Ids of jobs of its own team among those, at most 20."
    )


class WaitSerializer(serializers.Serializer[Any]):
    """What admission last found about a waiting job."""

    blocker = BlockerSerializer(allow_null=True, help_text="What the job waits for. Null if it is not known.")
    unblocks = serializers.CharField(
        allow_blank=True, help_text="What would let it start, as a sentence. May be empty."
    )
    position = serializers.IntegerField(
        allow_null=True, help_text="Position among the jobs that wait for its pool, from 1. Null if it has none."
    )
    of = serializers.IntegerField(
        allow_null=True, help_text="Number of jobs that wait for its pool. Null if it is not known."
    )
    starts_in_seconds = serializers.IntegerField(
        allow_null=True, help_text="Seconds from `at` until its reservation at the latest. Null without a reservation."
    )
    p50_seconds = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Estimated seconds from `estimated_at` until it starts: half of such jobs start sooner. Null "
            "if this cannot be estimated."
        ),
    )
    p90_seconds = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Estimated seconds from `estimated_at` until it starts: nine of ten such jobs start sooner. "
            "Null if this cannot be estimated."
        ),
    )
    at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the admission cycle, ISO 8601 in UTC. Null before the first."
    )
    estimated_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the estimate, ISO 8601 in UTC. Null without one."
    )


def serialize_wait(job: Job) -> dict[str, Any] | None:
    """Return a job's wait as WaitSerializer describes it, None if it does not wait or no cycle has considered it."""
    facts = job.waiting
    if job.status != JobStatus.QUEUED.value or not facts:
        return None
    blocker = facts.get("blocker")
    return {
        "blocker": {"held_by": [], "own_jobs": [], **blocker} if blocker else None,
        "unblocks": facts.get("unblocks", ""),
        "position": facts.get("position") or None,
        **{name: facts.get(name) for name in ("of", "starts_in_seconds", "p50_seconds", "p90_seconds")},
        **{name: _moment(facts.get(name)) for name in ("at", "estimated_at")},
    }


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


class JobSerializer(JobSummarySerializer):
    """A job in its full form."""

    attempts = AttemptSerializer(many=True, help_text="Attempts in order. Each is one submission to a cluster.")
    preemptions = serializers.IntegerField(help_text="How often its slots were reclaimed for other jobs.")
    timings = serializers.SerializerMethodField(help_text="Where its time went, from submission to its end or to now.")
    spec = serializers.JSONField(help_text="The spec as it was written.")
    resolved_spec = serializers.JSONField(
        help_text="The spec with every default filled in, and with the steps that `training.epochs` takes once the "
        "data is prepared."
    )
    submission = serializers.SerializerMethodField(
        help_text=("Script or manifest that was sent to the cluster for the newest attempt. Null before the first.")
    )
    wait = serializers.SerializerMethodField(
        help_text=(
            "What admission last found about a waiting job. Null if the job does not wait, or no cycle "
            "has considered it."
        )
    )

    @extend_schema_field(WaitSerializer(allow_null=True))
    def get_wait(self, job: Job) -> Any:
        """Return what admission last found about a waiting job."""
        return serialize_wait(job)

    @extend_schema_field(TimingsSerializer)
    def get_timings(self, job: Job) -> dict[str, Any]:
        """Return where the job's time went, in seconds."""
        return serialize_totals(total(timeline_of(job)))

    def get_submission(self, job: Job) -> str | None:
        """Return the script or manifest of the newest attempt that has one."""
        texts = [attempt.submission_text for attempt in attempts_of(job) if attempt.submission_text]
        return texts[-1] if texts else None


JobPage = page_serializer("JobPage", JobSummarySerializer)


class ForkSerializer(RequestSerializer):
    """How a fork differs from the original job."""

    changes = serializers.DictField(
        required=False,
        allow_null=True,
        help_text=(
            "JSON merge patch (RFC 7396) on the spec as it was written. Without it, or null, the spec is unchanged."
        ),
    )


def serialize_progress(job: Job) -> dict[str, Any] | None:
    """Return the progress of a job, None without one or for a job that makes no model."""
    progress = _progress(job)
    if progress is None:
        return None
    training = job.resolved_spec["training"]
    if not is_training(job.resolved_spec):
        return None
    length = training["sequence_length"]
    schedule = batch_size_schedule(training["tokens_per_step"], length, training.get("batch_ramp"))
    tokens_seen = schedule.sequences_before(max(progress.step, 0)) * length
    found = serialize_progress_values(progress, training["steps"], tokens_seen)
    return found if job.status == JobStatus.RUNNING.value else {**found, "eta_seconds": None}


def serialize_progress_values(progress: Progress, steps_total: int, tokens_seen: int) -> dict[str, Any]:
    """Return progress as ProgressSerializer describes it."""
    step = max(progress.step, 0)
    step_seconds = progress.values.get("time/step_seconds")
    newest, mean = progress.values.get("throughput/tokens_per_second"), progress.mean_tokens_per_second
    mfu = progress.values.get("throughput/mfu_causal")
    return {
        "step": step,
        "steps_total": steps_total,
        "tokens_seen": tokens_seen,
        "loss": progress.values.get("train/loss"),
        "validation_loss": progress.validation_last,
        "tokens_per_second": newest,
        "mean_tokens_per_second": mean,
        "mfu": mfu,
        "mean_mfu": mfu * mean / newest if mfu is not None and mean is not None and newest else None,
        "eta_seconds": (steps_total - step) * step_seconds if step_seconds else None,
        "phase": progress.phase,
        "updated_at": progress.updated_at.isoformat(),
    }


def _progress(job: Job) -> Progress | None:
    return getattr(job, "progress", None)
