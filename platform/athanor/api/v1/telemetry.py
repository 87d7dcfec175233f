"""/jobs/{id}/logs. Metrics are in metrics.py, events in events.py."""

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.parameters import MAX_INT32, IntegerParameter
from athanor.api.transfers import Download
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.telemetry import LOG_PAGE, OutputSerializer
from athanor.backends.base import BackendUnavailable
from athanor.core.errors import Invalid, Unavailable
from athanor.dispatch import output
from athanor.jobs import selectors
from athanor.telemetry import logs

MAX_PAGE_LINES = 1000
AFTER = IntegerParameter("after", "Only lines after this position.", min_value=-1, default=-1)
TAIL = IntegerParameter("tail", "Only the last lines, at most this many.", min_value=1, max_value=MAX_PAGE_LINES)
BEFORE = IntegerParameter("before", "With `tail`: only lines before this position.", min_value=0)
GREP = OpenApiParameter("grep", str, description="Only lines that contain this text.")
LIMIT = IntegerParameter(
    "limit", "Maximum number of lines per page.", min_value=1, max_value=MAX_PAGE_LINES, default=500
)
ATTEMPT = IntegerParameter("attempt", "Only lines of the attempt with this number.", min_value=1, max_value=MAX_INT32)
RANK = IntegerParameter(
    "rank", "Only lines of this rank; -1 is the agent of a node.", min_value=-1, max_value=MAX_INT32
)


class LogsView(APIView):
    """Requests to `/jobs/{job_id}/logs`."""

    @extend_schema(
        operation_id="jobs_logs",
        parameters=[
            AFTER.openapi,
            TAIL.openapi,
            BEFORE.openapi,
            ATTEMPT.openapi,
            RANK.openapi,
            GREP,
            LIMIT.openapi,
        ],
        responses={
            200: LOG_PAGE,
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        """Read the log of a job.

        Returns lines in order, or the last ones with `tail`. A page may contain few lines or none and still not be
        the last, because a search stops after a while: continue with `next_after` until it no longer changes. For the
        lines before a page that was read with `tail`, send its `next_before` as `before`, until it is null."""
        job = selectors.job_of(get_principal(request), job_id)
        sought = _sought(request)
        after, limit, tail = AFTER.read(request), LIMIT.read(request), TAIL.read_optional(request)
        if tail is not None:
            page = logs.backwards(job, sought, after=after, limit=tail, before=BEFORE.read_optional(request))
        else:
            page = logs.forwards(job, sought, after=after, limit=limit)
        items = [
            {
                "cursor": line.cursor,
                "time": line.time,
                "attempt": line.attempt,
                "rank": line.rank,
                "stream": line.stream,
                "text": line.text,
            }
            for line in page.lines
        ]
        return Response({"items": items, "next_after": page.next_after, "next_before": page.next_before})


class LogsDownloadView(APIView):
    """Requests to `/jobs/{job_id}/logs:download`."""

    @extend_schema(
        operation_id="jobs_logs_download",
        parameters=[ATTEMPT.openapi, RANK.openapi, GREP],
        responses={(200, "text/plain"): OpenApiResponse(OpenApiTypes.STR, description="The lines."), **PROBLEMS},
    )
    def get(self, request: Request, job_id: str) -> StreamingHttpResponse:
        """Download the log of a job.

        Streams all matching lines as text, each with its time, attempt and rank."""
        principal = get_principal(request)
        job = selectors.job_of(principal, job_id)
        lines = logs.every_line_of_job(job, _sought(request))
        text = (f"{each.time.isoformat()} attempt={each.attempt} rank={each.rank} {each.text}\n" for each in lines)
        response = StreamingHttpResponse(
            Download(principal.user, (line.encode() for line in text)),
            content_type="text/plain; charset=utf-8",
        )
        response["Content-Disposition"] = f'attachment; filename="{job.id}.log"'
        return response


def _sought(request: Request) -> logs.Sought:
    return logs.Sought(
        attempt=ATTEMPT.read_optional(request),
        rank=RANK.read_optional(request),
        grep=request.query_params.get("grep", ""),
    )


class OutputView(APIView):
    """Requests to `/jobs/{job_id}/attempts/{attempt_number}/output`."""

    @extend_schema(
        operation_id="jobs_attempt_output",
        parameters=[
            OpenApiParameter(
                "cursor", str, description="The `cursor` of an earlier response. Without it, from the beginning."
            )
        ],
        responses={200: OutputSerializer, **PROBLEMS},
    )
    def get(self, request: Request, job_id: str, attempt_number: int) -> Response:
        """Read a cluster's output of an attempt.

        Asks the cluster now for the output that it recorded of the attempt. It shows why an attempt did not start,
        when its agent could not report that. The log of the run is at `/jobs/{job_id}/logs`."""
        job = selectors.job_of(get_principal(request), job_id)
        attempt = selectors.attempt_of(job, attempt_number)
        try:
            part = output.read(attempt, request.query_params.get("cursor") or None)
        except BackendUnavailable as error:
            raise Unavailable("cluster_unavailable", f"its cluster does not answer: {error}") from error
        except ValueError as error:
            remedy = "take the cursor of an earlier answer, or none"
            raise Invalid("invalid_cursor", "this cursor is none of an earlier answer", remedy=remedy) from error
        return Response(OutputSerializer({"text": part.text, "cursor": part.cursor}).data)
