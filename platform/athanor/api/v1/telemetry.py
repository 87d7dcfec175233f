"""/jobs/{id}/metrics, /logs."""

from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import principal
from athanor.api.pagination import number
from athanor.api.v1.shapes import PROBLEMS
from athanor.jobs import selectors
from athanor.telemetry import selectors as telemetry

LARGEST_PAGE = 1000
MOST_POINTS = 5000


class SeriesSerializer(serializers.Serializer[Any]):
    steps = serializers.ListField(child=serializers.IntegerField())
    values = serializers.ListField(child=serializers.FloatField())
    times = serializers.ListField(child=serializers.DateTimeField())


class LogLineSerializer(serializers.Serializer[Any]):
    cursor = serializers.IntegerField()
    time = serializers.DateTimeField()
    attempt = serializers.IntegerField()
    rank = serializers.IntegerField()
    stream = serializers.CharField()
    text = serializers.CharField(allow_blank=True)


class MetricsView(APIView):
    @extend_schema(
        operation_id="jobs_metrics",
        parameters=[
            OpenApiParameter("names", str, description="comma-separated; all without it"),
            OpenApiParameter("points", int, description="at most so many of each series (4 to 5000)"),
            OpenApiParameter("after_step", int),
        ],
        responses={
            200: inline_serializer(
                "Metrics",
                {
                    "series": serializers.DictField(child=SeriesSerializer()),
                    "last_step": serializers.IntegerField(),
                    "names": serializers.ListField(child=serializers.CharField()),
                },
            ),
            **PROBLEMS,
        },
        description="Downsampled so that the lowest and the highest value of each stretch stay.",
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = selectors.job_of(principal(request), job_id)
        wanted = {name for name in request.query_params.get("names", "").split(",") if name}
        series = telemetry.series(
            job,
            None,
            limit=number(request, "points", 500, lowest=4, highest=MOST_POINTS),
            after_step=number(request, "after_step", -1, lowest=-1),
        )
        shown = {name: _columns(points) for name, points in series.items() if not wanted or name in wanted}
        last_step = max((points[-1][0] for points in series.values() if points), default=-1)
        return Response({"series": shown, "last_step": last_step, "names": sorted(series)})


class LogsView(APIView):
    @extend_schema(
        operation_id="jobs_logs",
        parameters=[
            OpenApiParameter("after", int, description="a line's cursor; what comes after it"),
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
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = selectors.job_of(principal(request), job_id)
        parameters = request.query_params
        after = number(request, "after", -1, lowest=-1)
        items = telemetry.lines(
            job,
            after=after,
            limit=number(request, "limit", 500, lowest=1, highest=LARGEST_PAGE),
            tail=number(request, "tail", 0, lowest=1) if parameters.get("tail") else None,
            attempt=number(request, "attempt", 0, lowest=1) if parameters.get("attempt") else None,
            rank=number(request, "rank", 0) if parameters.get("rank") else None,
            grep=parameters.get("grep", ""),
        )
        next_after = items[-1].cursor if items else after
        return Response({"items": LogLineSerializer(items, many=True).data, "next_after": next_after})


def _columns(points: list[telemetry.SeriesPoint]) -> dict[str, list[Any]]:
    return {
        "steps": [step for step, _, _ in points],
        "values": [value for _, value, _ in points],
        "times": [datetime.fromtimestamp(time, UTC).isoformat() for _, _, time in points],
    }
