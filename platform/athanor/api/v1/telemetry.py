"""/jobs/{id}/logs. Metrics are in metrics.py, events in events.py."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import principal
from athanor.api.pagination import number
from athanor.api.v1.shapes import PROBLEMS
from athanor.backends.base import BackendUnavailable
from athanor.core.errors import Invalid, NotFound, Unavailable
from athanor.dispatch import output
from athanor.jobs import selectors
from athanor.jobs.models import Attempt
from athanor.telemetry import logs

LARGEST_PAGE = 1000


class LogLineSerializer(serializers.Serializer[Any]):
    cursor = serializers.IntegerField()
    time = serializers.DateTimeField()
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    stream = serializers.CharField()
    text = serializers.CharField(allow_blank=True)


class LogsView(APIView):
    @extend_schema(
        operation_id="jobs_logs",
        parameters=[
            OpenApiParameter("after", int, description="a cursor: what comes after it"),
            OpenApiParameter("tail", int, description="only the last so many"),
            OpenApiParameter("attempt", int),
            OpenApiParameter("rank", int),
            OpenApiParameter("grep", str, description="lines that contain this"),
            OpenApiParameter("limit", int),
        ],
        responses={
            200: inline_serializer(
                "LogPage", {"items": LogLineSerializer(many=True), "next_after": serializers.IntegerField()}
            ),
            **PROBLEMS,
        },
        description="`next_after` is where the search has come to: a page may hold few lines, or none, and yet not be "
        "the last. At the end of what there is, it stays the same.",
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = selectors.job_of(principal(request), job_id)
        parameters = request.query_params
        sought = logs.Sought(
            attempt=attempt_number(request),
            rank=number(request, "rank", 0, lowest=-1, highest=2**31 - 1) if parameters.get("rank") else None,
            grep=parameters.get("grep", ""),
        )
        after = number(request, "after", -1, lowest=-1)
        if parameters.get("tail"):
            limit = number(request, "tail", 0, lowest=1, highest=LARGEST_PAGE)
            page = logs.backwards(job, sought, after=after, limit=limit)
        else:
            limit = number(request, "limit", 500, lowest=1, highest=LARGEST_PAGE)
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


class OutputSerializer(serializers.Serializer[Any]):
    text = serializers.CharField(allow_blank=True)
    cursor = serializers.CharField(allow_blank=True, help_text="asks for what comes after")


class OutputView(APIView):
    @extend_schema(
        operation_id="jobs_attempt_output",
        parameters=[OpenApiParameter("cursor", str, description="from an earlier answer; without it: the beginning")],
        responses={200: OutputSerializer, **PROBLEMS},
        description="What the cluster itself kept of an attempt's output, asked for now: why it did not begin, when "
        "its agent could not say so. The log of a run is at /jobs/{job_id}/logs.",
    )
    def get(self, request: Request, job_id: str, attempt_number: int) -> Response:
        job = selectors.job_of(principal(request), job_id)
        attempt = Attempt.objects.select_related("job__pool__cluster").filter(job=job, number=attempt_number).first()
        if attempt is None:
            raise NotFound("attempt", str(attempt_number))
        try:
            part = output.read(attempt, request.query_params.get("cursor") or None)
        except BackendUnavailable as error:
            raise Unavailable("cluster_unavailable", f"its cluster does not answer: {error}") from error
        except ValueError as error:
            remedy = "take the cursor of an earlier answer, or none"
            raise Invalid("invalid_cursor", "this cursor is none of an earlier answer", remedy=remedy) from error
        return Response(OutputSerializer({"text": part.text, "cursor": part.cursor}).data)


def attempt_number(request: Request) -> int | None:
    """The attempt that was asked for by its number; None: all."""
    if not request.query_params.get("attempt"):
        return None
    return number(request, "attempt", 0, lowest=1, highest=2**31 - 1)
