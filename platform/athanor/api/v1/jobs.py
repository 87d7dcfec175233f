"""/jobs: submit, plan, list, show, cancel, pause, resume, fork, retry."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
)
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.models import Team
from athanor.api.access import check_may_write, get_principal
from athanor.api.bodies import decode_body, parse_body
from athanor.api.etags import IF_MATCH, if_match_check, with_etag
from athanor.api.examples import SUBMISSION
from athanor.api.idempotency import IDEMPOTENT_JOBS, REPLAYED, read_key
from athanor.api.pagination import PAGE_PARAMETERS, SortParameter, paginated_response
from athanor.api.parameters import comma_separated, separated, time
from athanor.api.parsers import JSONParser, TextYamlParser, YamlParser
from athanor.api.sparse import EXPAND, FIELDS, serialize
from athanor.api.v1 import deletions, submission
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.deletions import DeletionSerializer
from athanor.api.v1.serializers.jobs import ForkSerializer, JobPage, JobSerializer, JobSummarySerializer
from athanor.api.v1.serializers.timeline import TimelineSerializer, serialize_totals
from athanor.artifacts import submissions
from athanor.core.errors import Conflict, FieldProblem, Invalid
from athanor.core.logging import bind
from athanor.jobs import selectors, services, timeline
from athanor.jobs.models import Job
from athanor.jobs.states import FINAL, JobStatus
from athanor.specs.v1 import JobSpec

MAX_SPANS = 400
SORT = SortParameter(selectors.ORDERS)
JOB_SERIALIZER = JobSerializer()  # creating one takes longer than using it


class JobsView(APIView):
    """Requests to `/jobs`."""

    parser_classes = (JSONParser, YamlParser, TextYamlParser)

    @extend_schema(
        operation_id="jobs_list",
        parameters=[
            comma_separated(
                "status",
                [status.value for status in JobStatus],
                "Only jobs with one of these statuses, separated by commas.",
            ),
            OpenApiParameter("team", str, description="Only jobs of the team with this name or id."),
            OpenApiParameter("project", str, description="Only jobs of the project with this name."),
            OpenApiParameter(
                "q",
                str,
                description="Only jobs with this in their name (ignoring case), or with an id that begins or "
                "ends with it.",
            ),
            OpenApiParameter("dataset", str, description="Only jobs that read the data set with this id."),
            OpenApiParameter(
                "created_by",
                str,
                description="Only jobs of the person or service account with this username, `@me` for your own.",
            ),
            OpenApiParameter(
                "created_after", OpenApiTypes.DATETIME, description="Only jobs submitted after this time."
            ),
            *PAGE_PARAMETERS,
            SORT.openapi,
            FIELDS,
            EXPAND,
        ],
        responses={200: JobPage, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List jobs.

        Returns the jobs of your teams in their short form, newest first unless `sort` says otherwise. Filters
        combine with AND. `label.KEY=VALUE` filters by a label and may be given for several keys. Add fields of the
        full form with `expand`, or name all fields that you need in `fields`."""
        parameters, principal = request.query_params, get_principal(request)
        jobs = selectors.filtered(
            principal,
            statuses=_statuses(parameters.get("status", "")),
            team=parameters.get("team", ""),
            project=parameters.get("project", ""),
            query=parameters.get("q", ""),
            labels={
                name.removeprefix("label."): parameters.get(name, "")
                for name in parameters
                if name.startswith("label.")
            },
            dataset=parameters.get("dataset", ""),
            created_by=selectors.creator(principal, parameters.get("created_by", "")),
            created_after=time(request, "created_after"),
        )
        details = selectors.summaries_of(principal)
        if more := parameters.get("fields") or parameters.get("expand"):
            details = selectors.details_of(principal, with_timeline="timings" in separated(more))
        rows, next_cursor = SORT.paginate(request, jobs, details)
        items = serialize(request, JobSerializer, rows, many=True, usual=JobSummarySerializer)
        return paginated_response(items, next_cursor)

    @extend_schema(
        operation_id="jobs_submit",
        parameters=IDEMPOTENT_JOBS,
        request={"application/json": JobSpec, "application/yaml": JobSpec},
        responses={201: JobSerializer, **PROBLEMS},
        examples=[OpenApiExample("A run of a minute", value=SUBMISSION, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        """Submit a job.

        Validates the spec, checks that it fits the pool and the team's quotas, and queues the job. Send the spec as
        JSON or YAML. The team may be left out if you belong to one team only. A spec that cannot run is refused with
        422, and every problem found is listed in `errors`. Needs the role member in the team."""
        written = decode_body(request)
        return _submit(request, submission.team_of_spec(get_principal(request), written), written)


class JobView(APIView):
    """Requests to `/jobs/{job_id}`."""

    @extend_schema(operation_id="jobs_show", parameters=[FIELDS], responses={200: JobSerializer, **PROBLEMS})
    def get(self, request: Request, job_id: str) -> Response:
        """Show a job.

        Returns the job with its attempts, timings and specs. The response has an `ETag`; with `If-None-Match` an
        unchanged job is answered with 304."""
        job = selectors.job_of(get_principal(request), job_id)
        return with_etag(request, serialize(request, JobSerializer, job), _etag(job))

    @extend_schema(
        operation_id="jobs_delete",
        parameters=[deletions.PERMANENTLY],
        responses={200: DeletionSerializer, **PROBLEMS},
    )
    def delete(self, request: Request, job_id: str) -> Response:
        """Delete what a job stored.

        Deletes the models, logs, profiles and checkpoints of a job that has ended. The job's record, events, metrics
        and costs stay. The deletion can be undone until the undo window ends."""
        return deletions.delete(request, "jobs", job_id)


class TimelineView(APIView):
    """Requests to `/jobs/{job_id}/timeline`."""

    @extend_schema(operation_id="jobs_timeline", responses={200: TimelineSerializer, **PROBLEMS})
    def get(self, request: Request, job_id: str) -> Response:
        """Show where a job's time went.

        Splits the time from submission to the end, or to now, by the job's events: queue, start-up by phase, training,
        evaluations, checkpoints, export, pauses, and what was lost because no checkpoint kept it. The parts sum to the
        whole, for the job and for each attempt."""
        spans = selectors.timeline_of(selectors.job_of(get_principal(request), job_id))
        found = {
            "spans": timeline.simplified(spans, MAX_SPANS),
            "timings": serialize_totals(timeline.total(spans)),
            "attempts": [
                {"attempt": number, "timings": serialize_totals(totals)}
                for number, totals in sorted(timeline.totals_by_attempt(spans).items())
            ],
        }
        return Response(TimelineSerializer(found).data)


def _act(request: Request, job_id: str, service: services.JobAction) -> Response:
    """Write the desired state of a job. Return it with 202, or 200 if it has ended already."""
    principal = get_principal(request)
    job = selectors.job_of(principal, job_id)
    check_may_write(principal, job.team_id)
    was_final = JobStatus(job.status) in FINAL
    service(job_id, principal.user.username, if_match_check(request, _is_unchanged))
    return Response(JobSerializer(selectors.job_of(principal, job_id)).data, status=200 if was_final else 202)


ACTION_ANSWERS = {
    200: OpenApiResponse(JobSerializer, description="The job, which has ended already."),
    202: OpenApiResponse(JobSerializer, description="The job. Its status follows what was requested."),
    **PROBLEMS,
}


class CancelView(APIView):
    """Requests to `/jobs/{job_id}:cancel`."""

    @extend_schema(operation_id="jobs_cancel", parameters=[IF_MATCH], request=None, responses=ACTION_ANSWERS)
    def post(self, request: Request, job_id: str) -> Response:
        """Cancel a job.

        Asks for the end of the job and returns 202; the job ends when its processes have stopped. A job that has
        ended already is returned with 200. Repeating the request changes nothing. Needs the role member in the team."""
        return _act(request, job_id, services.request_stop)


class PauseView(APIView):
    """Requests to `/jobs/{job_id}:pause`."""

    @extend_schema(
        operation_id="jobs_pause",
        parameters=[IF_MATCH],
        request=None,
        responses=ACTION_ANSWERS,
    )
    def post(self, request: Request, job_id: str) -> Response:
        """Pause a job.

        Asks a running job to save a checkpoint and release its slots; a job that has not started is held in the
        queue. Repeating the request changes nothing. A job that has ended or is asked to stop is refused with 409.
        Needs the role member in the team."""
        return _act(request, job_id, services.request_pause)


class ResumeView(APIView):
    """Requests to `/jobs/{job_id}:resume`."""

    @extend_schema(
        operation_id="jobs_resume",
        parameters=[IF_MATCH],
        request=None,
        responses=ACTION_ANSWERS,
    )
    def post(self, request: Request, job_id: str) -> Response:
        """Resume a job.

        Releases a held job, or returns a paused one to the queue; it continues from its newest checkpoint. Repeating
        the request changes nothing. A job that has ended or is asked to stop is refused with 409. Needs the role
        member in the team."""
        return _act(request, job_id, services.request_resume)


class ForkView(APIView):
    """Requests to `/jobs/{job_id}:fork`."""

    @extend_schema(
        operation_id="jobs_fork",
        parameters=IDEMPOTENT_JOBS,
        request=ForkSerializer,
        responses={201: JobSerializer, **PROBLEMS},
    )
    def post(self, request: Request, job_id: str) -> Response:
        """Fork a job.

        Submits a new job with the spec of the original, as it was written, and with `changes` applied as a JSON
        merge patch. The original may be in any state and is not changed. Needs the role member in the team."""
        principal = get_principal(request)
        original = selectors.job_of(principal, job_id)
        check_may_write(principal, original.team_id)
        changes = parse_body(request, ForkSerializer).get("changes")
        written = submission.apply_merge_patch(_written(original), changes or {})
        return _submit(request, submission.team_of_spec(principal, written), written, original)


class RetryView(APIView):
    """Requests to `/jobs/{job_id}:retry`."""

    @extend_schema(
        operation_id="jobs_retry",
        parameters=IDEMPOTENT_JOBS,
        request=None,
        responses={201: JobSerializer, **PROBLEMS},
    )
    def post(self, request: Request, job_id: str) -> Response:
        """Retry a job.

        Submits a new job with the spec of a job that has ended, as it was written; a base model that was named by an
        alias or a version is the same one. A job that has not ended is refused with 409. Needs the role member in the
        team."""
        principal = get_principal(request)
        original = selectors.job_of(principal, job_id)
        check_may_write(principal, original.team_id)
        if JobStatus(original.status) not in FINAL:
            remedy = "wait for its end or cancel it; to run it a second time in parallel, fork it"
            raise Conflict("job_not_final", f"{job_id} is {original.status} and has not ended", remedy=remedy)
        written = submission.with_same_base(_written(original), original)
        return _submit(request, original.team, written, original)


def _written(job: Job) -> dict[str, Any]:
    return {**job.spec, "team": job.team.name}


def _submit(request: Request, team: Team, written: Any, original: Job | None = None) -> Response:
    key = read_key(request)
    try:
        done = services.submit(
            submissions.validate_submission(get_principal(request), team, written, original), key, submissions.check
        )
    except (Invalid, Conflict):
        # An accepted submission is answered again, even if its cluster or data no longer exist.
        before = services.replayed(team, key, written) if key else None
        if before is None:
            raise
        return _created(before, replayed=True)
    return _created(done.job, replayed=done.replayed)


def _created(job: Job, *, replayed: bool) -> Response:
    bind(job=job.id)
    if replayed:
        selectors.load_attempts(job)
    else:
        selectors.mark_as_new(job)
    headers = {"Location": f"/api/v1/jobs/{job.id}", "ETag": _etag(job)}
    if replayed:
        headers[REPLAYED.name] = "true"
    return Response(JOB_SERIALIZER.to_representation(job), status=201, headers=headers)


def _etag(job: Job) -> str:
    progress = getattr(job, "progress", None)
    reported_at = int(progress.updated_at.timestamp() * 1000) if progress else 0
    return f'W/"{job.version}-{job.event_seq}-{reported_at}"'


def _is_unchanged(job: Job, tag: str) -> bool:
    """Return whether status and desired state are those of the ETag. Progress and events do not count."""
    return tag.startswith(f'W/"{job.version}-')


def _statuses(text: str) -> list[str]:
    asked = separated(text)
    known = [status.value for status in JobStatus]
    for name in asked:
        if name not in known:
            detail = f"status={name!r} is none of {', '.join(known)}"
            raise Invalid(
                "invalid_parameter", detail, remedy="fix status", problems=(FieldProblem("/status", "choice", detail),)
            )
    return asked
