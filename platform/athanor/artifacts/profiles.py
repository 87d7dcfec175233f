"""Profiles of a running job's steps: requested by users, passed to agents in heartbeats, uploaded by agents.

A request belongs to the attempt that was running when it was created. New worker groups of the attempt take it over;
the attempt's end closes open requests. Traces are stored as long as their job.
"""

from typing import Any

from django.db import transaction
from django.db.models import Max, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.artifacts import manifests, services
from athanor.artifacts.models import Artifact, Profile
from athanor.core.errors import Conflict, NotFound
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import ATTEMPT_LIVE, Desired, JobStatus
from athanor.specs.v1 import is_training
from trainer.contract.encryption import authenticate
from trainer.contract.manifest import ProfileManifest
from trainer.contract.run import ProfileRequest

# Its first steps may be over before it is seen to run.
TRAINING = (JobStatus.STARTING.value, JobStatus.RUNNING.value)
LIVE = [status.value for status in ATTEMPT_LIVE]


def request(job_id: str, steps: int, actor: str) -> Profile:
    """Request traces of the next `steps` steps.

    Raise Conflict for a job that is not training, or that has an open request already.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=job_id)
        _check_trains(job)
        before = Profile.objects.filter(job=job)
        if (other := before.filter(state=Profile.State.REQUESTED).first()) is not None:
            raise Conflict(
                "profile_open",
                f"{other.id} of {job.id} is still open: {other.steps} steps, asked for by {other.requested_by}",
                remedy="wait until it is ready or has failed",
            )
        profile = Profile.objects.create(
            job=job,
            attempt=Attempt.objects.get(job=job, status__in=LIVE),
            number=(before.aggregate(last=Max("number"))["last"] or 0) + 1,
            steps=steps,
            requested_by=actor,
        )
        _tell(job, "profile.requested", actor, {"profile": profile.id, "steps": steps})
        facts = {"profile": profile.id, "steps": steps}
        audit.record("job.profile", actor=actor, target=("job", job.id), team_id=job.team_id, after=facts)
    return profile


def wanted_of(attempt: Attempt) -> ProfileRequest | None:
    """Return the open request of an attempt, for the response to its heartbeat; None without one."""
    open_ones = Profile.objects.filter(job_id=attempt.job_id, state=Profile.State.REQUESTED)
    found = open_ones.filter(attempt=attempt).first()
    return ProfileRequest(number=found.number, steps=found.steps) if found else None


def register(attempt: Attempt, manifest: ProfileManifest) -> Profile:
    """Register what a node's ranks traced. Idempotent. The profile is ready when every node has registered."""
    if not manifest.problem:
        services.check_is_whole(attempt.job_id, manifest)
        manifest = manifests.by_attempt(attempt, manifest)
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        profile = Profile.objects.filter(attempt=attempt, number=manifest.number).first()
        if profile is None:
            raise NotFound("profile", str(manifest.number))
        if profile.state != Profile.State.REQUESTED:
            return profile
        if manifest.problem:
            _fail(job, profile, manifest.problem, actor=attempt.id)
            return profile
        profile.nodes[str(manifest.node_rank)] = manifest.model_dump(mode="json")
        if len(profile.nodes) == job.resolved_spec["resources"]["nodes"]:
            _finish(job, profile)
        profile.save()
    return profile


def close_of(attempt: Attempt, job: Job) -> None:
    """Close open requests at the end of an attempt. The caller has locked the job."""
    for profile in Profile.objects.filter(attempt=attempt, state=Profile.State.REQUESTED):
        _fail(job, profile, "The attempt ended before its steps were traced.", actor="dispatch")


def profiles_of(job: Job) -> QuerySet[Profile]:
    """Return the job's profiles, the newest first."""
    return Profile.objects.filter(job=job).select_related("artifact").order_by("-number")


def _check_trains(job: Job) -> None:
    if not is_training(job.resolved_spec):
        does = "evaluates a model" if job.resolved_spec.get("evaluation") else "only prepares data"
        does = "replays another job" if job.resolved_spec.get("replay") else does
        does = "exports a checkpoint" if job.resolved_spec.get("export") else does
        raise Conflict("nothing_to_profile", f"{job.id} {does} and trains no model", remedy="profile a run")
    if job.status not in TRAINING or job.desired != Desired.RUN.value:
        state = job.status if job.status not in TRAINING else f"{job.status}, and asked to {job.desired}"
        raise Conflict("job_not_running", f"{job.id} is {state}", remedy="ask while it is running")
    if not Attempt.objects.filter(job=job, status__in=LIVE).exists():
        raise Conflict("job_not_running", f"the attempt of {job.id} has just ended", remedy="ask while it is running")


def _finish(job: Job, profile: Profile) -> None:
    parts = [ProfileManifest.model_validate(part) for _, part in sorted(profile.nodes.items(), key=lambda i: int(i[0]))]
    encryptor = manifests.encryptor_of(job)
    parts = [manifests.tagged(part, encryptor) for part in parts]
    files = [file for part in parts for file in part.files]
    whole = parts[0].model_copy(update={"files": files})
    profile.first_step, profile.last_step = parts[0].first_step, parts[0].last_step
    profile.artifact = Artifact.objects.create(
        job=job,
        attempt_id=profile.attempt_id,
        kind=Artifact.Kind.PROFILE,
        name=f"profile of steps {profile.first_step} to {profile.last_step}",
        step=profile.last_step,
        size_bytes=services.size_of_files(files),
        manifest=authenticate(whole, encryptor).model_dump(mode="json"),
    )
    profile.state, profile.finished_at, profile.nodes = Profile.State.READY, timezone.now(), {}
    facts = {
        "profile": profile.id,
        "artifact": profile.artifact.id,
        "first_step": profile.first_step,
        "last_step": profile.last_step,
        "bytes": profile.artifact.size_bytes,
    }
    _tell(job, "profile.ready", profile.attempt_id, facts)


def _fail(job: Job, profile: Profile, reason: str, *, actor: str) -> None:
    profile.state, profile.reason, profile.finished_at = Profile.State.FAILED, reason, timezone.now()
    profile.save(update_fields=["state", "reason", "finished_at"])
    _tell(job, "profile.failed", actor, {"profile": profile.id, "because": reason})


def _tell(job: Job, type_: str, actor: str, facts: dict[str, Any]) -> None:
    events.append(job, type_, actor=actor, data=facts)
    job.save(update_fields=["event_seq", "updated_at"])
