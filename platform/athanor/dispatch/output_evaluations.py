"""Submit the evaluation job that a training job's spec requests for its output (`output.evaluation`)."""

from django.db import transaction
from django.db.models.functions import Now

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import principal_of
from athanor.artifacts import quota_checks, submissions
from athanor.artifacts.models import Artifact
from athanor.core.errors import AthanorError, FieldProblem, Forbidden, Unavailable
from athanor.core.leases import Lease
from athanor.dispatch.services import spec_of
from athanor.jobs import events, services
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.services import Submission
from athanor.specs.v1 import MAX_NAME, OutputEvaluation
from trainer.contract.evaluation import EvaluationJobSpec

EVENTS = ("evaluation.submitted", "evaluation.refused")
SUFFIX = "-evaluation"


def submit_for(attempt: Attempt, lease: Lease) -> None:
    """Submit the evaluation job of the model that a completed attempt exported; none if the spec requests none.

    The job is submitted once, by the user who submitted the training job, and starts after that one has succeeded, when
    its version is registered. A refusal is an event and a warning of the training job, which the
    caller has leased. Raises Unavailable if the store does not answer.
    """
    evaluation = spec_of(attempt.job).output.evaluation
    if evaluation is None or _is_settled(attempt.job):
        return
    submission, refusal = None, None
    try:
        submission = _submission(attempt, evaluation)
    except Unavailable:
        raise
    except AthanorError as error:
        refusal = error
    with transaction.atomic():
        leased = Job.objects.select_for_update(no_key=True).filter(
            pk=lease.pk, lease_token=lease.token, lease_until__gt=Now()
        )
        job = leased.first()
        if job is None or _is_settled(job):
            return
        try:
            done = None if submission is None else services.submit(submission, check=quota_checks.check)
        except AthanorError as error:
            done, refusal = None, error
        if done is not None:
            message = f"{done.job.name} ({done.job.id})"
            facts = {"job": done.job.id, "tasks": [task.name for task in evaluation.tasks]}
            events.append(job, "evaluation.submitted", actor="dispatch", message=message, data=facts)
        elif refusal is not None:
            facts = {"because": refusal.message, "remedy": refusal.remedy}
            message = f"{refusal.message}; {refusal.remedy}"
            events.append(job, "evaluation.refused", actor="dispatch", message=message, data=facts)
            warning = FieldProblem("/output/evaluation", refusal.code, f"the evaluation was refused: {message}")
            job.warnings = [*job.warnings, vars(warning)]
        job.save(update_fields=["event_seq", "warnings", "updated_at"])


def _is_settled(job: Job) -> bool:
    return JobEvent.objects.filter(job=job, type__in=EVENTS).exists()


def _submission(attempt: Attempt, evaluation: OutputEvaluation) -> Submission:
    """Return the validated submission. Raises AthanorError if it is refused."""
    job, spec = attempt.job, spec_of(attempt.job)
    principal = principal_of(job.created_by)
    if not job.created_by.is_active or not principal.may(Permission.SUBMIT, job.team_id):
        raise Forbidden(
            "role_missing",
            f"{job.created_by.username} may no longer submit jobs in team {job.team.name}",
            remedy="submit the evaluation as another member of the team",
        )
    artifact = Artifact.objects.get(attempt=attempt, kind=Artifact.Kind.MODEL)
    evaluating = EvaluationJobSpec(
        model=f"model:{artifact.id}",
        tasks=evaluation.tasks,
        sequence_length=evaluation.sequence_length,
        precision=evaluation.precision,
        parallelism=evaluation.parallelism,
    )
    written = {
        "version": 1,
        "name": spec.name[: MAX_NAME - len(SUFFIX)] + SUFFIX,
        "team": job.team.name,
        "project": spec.project,
        "labels": spec.labels,
        "priority": spec.priority,
        "resources": (evaluation.resources or spec.resources).model_dump(mode="json"),
        "after": [job.id],
        "evaluation": evaluating.model_dump(mode="json"),
    }
    return submissions.validate_submission(principal, job.team, written)
