"""/jobs/{id}/logs. Metrics are in metrics.py, events in events.py."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.parameters import MAX_INT32, IntegerParameter
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
            ATTEMPT.openapi,
            RANK.openapi,
            OpenApiParameter("grep", str, description="Only lines that contain this text."),
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
        the last, because a search stops after a while: continue with `next_after` until it no longer changes."""
        job = selectors.job_of(get_principal(request), job_id)
        sought = logs.Sought(
            attempt=ATTEMPT.read_optional(request),
            rank=RANK.read_optional(request),
            grep=request.query_params.get("grep", ""),
        )
        after, limit, tail = AFTER.read(request), LIMIT.read(request), TAIL.read_optional(request)
        if tail is not None:
            page = logs.backwards(job, sought, after=after, limit=tail)
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
        return Response({"items": items, "next_after": page.next_after})


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
