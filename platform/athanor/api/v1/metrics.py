"""/jobs/{id}/metrics, and /metrics:query for many series of many jobs."""

from datetime import datetime
from typing import Any

import numpy as np
from drf_spectacular.utils import OpenApiParameter, extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import principal
from athanor.api.bodies import RequestSerializer, read
from athanor.api.parameters import LARGEST_32, WholeNumber
from athanor.api.v1.shapes import PROBLEMS
from athanor.core.errors import FieldProblem, Invalid, NotFound
from athanor.jobs import selectors
from athanor.jobs.models import Job
from athanor.jobs.states import JobStatus
from athanor.telemetry import curves, pyramid
from athanor.telemetry.codec import Matrix

LEAST_POINTS = 4
MOST_POINTS = 5000
MOST_JOBS = 100
MOST_SERIES = 100
MOST_NUMBERS = 500_000  # points of all curves of one answer, about ten megabytes
POINTS_HELP = "at most so many of each series (4 to 5000): as many as the chart has pixels"


class SeriesSerializer(serializers.Serializer[Any]):
    steps = serializers.ListField(child=serializers.IntegerField())
    values = serializers.ListField(child=serializers.FloatField())
    times = serializers.ListField(child=serializers.DateTimeField())


class CurveSerializer(serializers.Serializer[Any]):
    steps = serializers.ListField(child=serializers.IntegerField())
    values = serializers.ListField(child=serializers.FloatField())
    seconds = serializers.ListField(child=serializers.FloatField(), help_text="since the job's `origin`")
    lowest = serializers.ListField(child=serializers.FloatField(), required=False, help_text="with draw=mean")
    highest = serializers.ListField(child=serializers.FloatField(), required=False, help_text="with draw=mean")


class JobCurvesSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=[status.value for status in JobStatus])
    origin = serializers.DateTimeField(help_text="when it started; before that, when it was made")
    series = serializers.DictField(child=CurveSerializer())


class JobFiltersSerializer(RequestSerializer):
    status = serializers.ListField(
        child=serializers.ChoiceField(choices=[status.value for status in JobStatus]), required=False
    )
    team = serializers.CharField(required=False)
    project = serializers.CharField(required=False)
    q = serializers.CharField(required=False)
    labels = serializers.DictField(child=serializers.CharField(), required=False)
    created_after = serializers.DateTimeField(required=False)


class QuerySerializer(RequestSerializer):
    jobs = serializers.ListField(
        child=serializers.CharField(max_length=40), required=False, max_length=MOST_JOBS, help_text="ids"
    )
    filters = JobFiltersSerializer(required=False)
    limit = serializers.IntegerField(
        min_value=1, max_value=MOST_JOBS, default=50, help_text="with filters: the newest so many jobs"
    )
    series = serializers.ListField(
        child=serializers.CharField(max_length=200), min_length=1, max_length=MOST_SERIES, help_text="names"
    )
    points = serializers.IntegerField(min_value=LEAST_POINTS, max_value=MOST_POINTS, default=500, help_text=POINTS_HELP)
    from_step = serializers.IntegerField(min_value=0, max_value=curves.FAR, default=0)
    to_step = serializers.IntegerField(min_value=0, max_value=curves.FAR, required=False)
    attempt = serializers.IntegerField(
        min_value=1, max_value=2**31 - 1, required=False, help_text="as that attempt drew it"
    )
    draw = serializers.ChoiceField(
        choices=["extremes", "mean"],
        default="extremes",
        help_text="extremes: real points, no spike is lost; mean: means, with the lowest and highest of each stretch",
    )


POINTS = WholeNumber("points", POINTS_HELP, lowest=LEAST_POINTS, highest=MOST_POINTS, default=500)
AFTER_STEP = WholeNumber("after_step", "steps above this one", lowest=-1, default=-1)
TO_STEP = WholeNumber("to_step", "the last step to show", highest=curves.FAR, default=curves.FAR)
ATTEMPT = WholeNumber("attempt", "as that attempt drew it, whatever came later", lowest=1, highest=LARGEST_32)


class MetricsView(APIView):
    @extend_schema(
        operation_id="jobs_metrics",
        parameters=[
            OpenApiParameter("names", str, description="comma-separated; all without it"),
            POINTS.documented,
            AFTER_STEP.documented,
            TO_STEP.documented,
            ATTEMPT.documented,
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
        description="Downsampled so that the lowest and the highest value of each stretch stay. Where a later "
        "generation or attempt did steps again, its points stand.",
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = selectors.job_of(principal(request), job_id)
        wanted = frozenset(name for name in request.query_params.get("names", "").split(",") if name)
        asked = curves.Asked(
            jobs=[job.id],
            names=wanted or None,
            points=POINTS.read(request),
            from_step=AFTER_STEP.read(request) + 1,
            to_step=TO_STEP.read(request),
            attempt=ATTEMPT.given(request),
        )
        found = {name: points for (_, name), points in curves.curves(asked).items()}
        last_step = max((int(points[pyramid.STEP, -1]) for points in found.values()), default=-1)
        series = {name: _with_times(points) for name, points in found.items()}
        return Response({"series": series, "last_step": last_step, "names": curves.names_of([job.id])})


class MetricsQueryView(APIView):
    @extend_schema(
        operation_id="metrics_query",
        request=QuerySerializer,
        responses={
            200: inline_serializer(
                "MetricsAnswer",
                {
                    "items": JobCurvesSerializer(many=True),
                    "points": serializers.IntegerField(
                        help_text="fewer than asked for where there are very many curves"
                    ),
                },
            ),
            **PROBLEMS,
        },
        description="Many series of many jobs at once: of `jobs`, or of the newest that `filters` match.",
    )
    def post(self, request: Request) -> Response:
        sent = read(QuerySerializer, request)
        jobs = _jobs(request, sent)
        names = frozenset(sent["series"])
        points = min(sent["points"], max(LEAST_POINTS, MOST_NUMBERS // max(1, len(jobs) * len(names))))
        asked = curves.Asked(
            jobs=[job.id for job in jobs],
            names=names,
            points=points,
            from_step=sent["from_step"],
            to_step=sent.get("to_step", curves.FAR),
            attempt=sent.get("attempt"),
        )
        draw, columns = (curves.averages, _averages) if sent["draw"] == "mean" else (curves.curves, _points)
        found = draw(asked) if jobs else {}
        items = []
        for job in jobs:
            origin = job.started_at or job.created_at
            drawn = {name: columns(found[job.id, name], origin) for name in sent["series"] if (job.id, name) in found}
            items.append(
                {"id": job.id, "name": job.name, "status": job.status, "origin": origin.isoformat(), "series": drawn}
            )
        return Response({"items": items, "points": points})


def _jobs(request: Request, sent: dict[str, Any]) -> list[Job]:
    """Those named, in that order, or the newest of those that match. Raises NotFound for one they may not see."""
    rows = selectors.plain_jobs_of(principal(request))
    if ("jobs" in sent) == ("filters" in sent):
        detail = "name either jobs or filters"
        raise Invalid("invalid", detail, remedy=detail, problems=(FieldProblem("/jobs", "choice", detail),))
    if "jobs" in sent:
        found = rows.in_bulk(sent["jobs"])
        for job_id in sent["jobs"]:
            if job_id not in found:
                raise NotFound("job", job_id)
        return [found[job_id] for job_id in dict.fromkeys(sent["jobs"])]
    filters = sent["filters"]
    matching = selectors.filtered(
        rows,
        statuses=filters.get("status", []),
        team=filters.get("team", ""),
        project=filters.get("project", ""),
        query=filters.get("q", ""),
        labels=filters.get("labels", {}),
        created_after=filters.get("created_after"),
    )
    return list(matching.order_by("-pk")[: sent["limit"]])


def _with_times(points: Matrix) -> dict[str, Any]:
    return {
        "steps": points[pyramid.STEP].astype(np.int64),
        "values": np.ascontiguousarray(points[pyramid.VALUE]),
        "times": points[pyramid.TIME].astype(np.int64).astype("datetime64[us]"),
    }


def _points(points: Matrix, origin: datetime) -> dict[str, Any]:
    return {
        "steps": points[pyramid.STEP].astype(np.int64),
        "values": np.ascontiguousarray(points[pyramid.VALUE]),
        "seconds": _seconds(points[pyramid.TIME], origin),
    }


def _averages(buckets: Matrix, origin: datetime) -> dict[str, Any]:
    return {
        "steps": buckets[pyramid.LAST_STEP].astype(np.int64),
        "values": buckets[pyramid.SUM] / buckets[pyramid.COUNT],
        "lowest": np.ascontiguousarray(buckets[pyramid.LOW]),
        "highest": np.ascontiguousarray(buckets[pyramid.HIGH]),
        "seconds": _seconds(buckets[pyramid.LAST_TIME], origin),
    }


def _seconds(micros: Any, origin: datetime) -> Any:
    return np.round(micros / 1e6 - origin.timestamp(), 3)
