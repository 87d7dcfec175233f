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
from athanor.telemetry import curves, rollups
from athanor.telemetry.codec import Matrix

LEAST_POINTS = 4
MOST_POINTS = 5000
MOST_JOBS = 100
MOST_SERIES = 100
MOST_NUMBERS = 500_000  # points of all curves of one answer, about ten megabytes
POINTS_HELP = "Most points of each series; as many as the chart is wide in pixels are enough."


class SeriesSerializer(serializers.Serializer[Any]):
    """A series of a job's metrics: arrays of equal length."""

    steps = serializers.ListField(child=serializers.IntegerField(), help_text="Steps, ascending.")
    values = serializers.ListField(child=serializers.FloatField(), help_text="Value at each step.")
    times = serializers.ListField(child=serializers.DateTimeField(), help_text="Time of each value, ISO 8601 in UTC.")


class CurveSerializer(serializers.Serializer[Any]):
    """A series of one of several jobs: arrays of equal length."""

    steps = serializers.ListField(
        child=serializers.IntegerField(), help_text="Steps, ascending; with `draw=mean` the last step of each interval."
    )
    values = serializers.ListField(
        child=serializers.FloatField(), help_text="Value at each step; with `draw=mean` the mean of each interval."
    )
    seconds = serializers.ListField(
        child=serializers.FloatField(), help_text="Seconds since the job's `origin`, for each step."
    )
    lowest = serializers.ListField(
        child=serializers.FloatField(),
        required=False,
        help_text="Lowest value of each interval. Only with `draw=mean`.",
    )
    highest = serializers.ListField(
        child=serializers.FloatField(),
        required=False,
        help_text="Highest value of each interval. Only with `draw=mean`.",
    )


class JobCurvesSerializer(serializers.Serializer[Any]):
    """The series of one job."""

    id = serializers.CharField(help_text="Id of the job.")
    name = serializers.CharField(help_text="Name of the job.")
    status = serializers.ChoiceField(choices=[status.value for status in JobStatus], help_text="Status of the job.")
    origin = serializers.DateTimeField(
        help_text="Time of the job's first start; before that, of its submission. ISO 8601 in UTC."
    )
    series = serializers.DictField(
        child=CurveSerializer(), help_text="Series by name. A series that the job does not have is absent."
    )


class JobFiltersSerializer(RequestSerializer):
    """Conditions on jobs, combined with AND."""

    status = serializers.ListField(
        child=serializers.ChoiceField(choices=[status.value for status in JobStatus]),
        required=False,
        help_text="Jobs with one of these statuses.",
    )
    team = serializers.CharField(required=False, help_text="Jobs of the team with this name or id.")
    project = serializers.CharField(required=False, help_text="Jobs of the project with this name.")
    q = serializers.CharField(
        required=False, help_text="Jobs with this in their name (ignoring case), or the job with this id."
    )
    labels = serializers.DictField(
        child=serializers.CharField(), required=False, help_text="Jobs with all of these labels."
    )
    created_after = serializers.DateTimeField(required=False, help_text="Jobs submitted after this time, RFC 3339.")


class QuerySerializer(RequestSerializer):
    """Which series of which jobs, and how many points."""

    jobs = serializers.ListField(
        child=serializers.CharField(max_length=40),
        required=False,
        max_length=MOST_JOBS,
        help_text="Ids of jobs. Give this or `filters`.",
    )
    filters = JobFiltersSerializer(required=False, help_text="Which jobs. Give this or `jobs`.")
    limit = serializers.IntegerField(
        min_value=1, max_value=MOST_JOBS, default=50, help_text="With `filters`: at most this many jobs, the newest."
    )
    series = serializers.ListField(
        child=serializers.CharField(max_length=200),
        min_length=1,
        max_length=MOST_SERIES,
        help_text="Names of series, such as `train/loss`.",
    )
    points = serializers.IntegerField(
        min_value=LEAST_POINTS,
        max_value=MOST_POINTS,
        default=500,
        help_text="Most points of each series; as many as the chart is wide in pixels are enough.",
    )
    from_step = serializers.IntegerField(min_value=0, max_value=curves.FAR, default=0, help_text="First step.")
    to_step = serializers.IntegerField(
        min_value=0, max_value=curves.FAR, required=False, help_text="Last step. The newest without it."
    )
    attempt = serializers.IntegerField(
        min_value=1,
        max_value=2**31 - 1,
        required=False,
        help_text=(
            "Number of an attempt: the series as that attempt reported them. Without it, later attempts "
            "replace the steps that they repeat."
        ),
    )
    draw = serializers.ChoiceField(
        choices=["extremes", "mean"],
        default="extremes",
        help_text=(
            "`extremes` returns real points and loses no spike; `mean` returns means with the lowest and "
            "highest value of each interval."
        ),
    )


POINTS = WholeNumber("points", POINTS_HELP, lowest=LEAST_POINTS, highest=MOST_POINTS, default=500)
AFTER_STEP = WholeNumber("after_step", "Only steps after this one.", lowest=-1, default=-1)
TO_STEP = WholeNumber("to_step", "The last step.", highest=curves.FAR, default=curves.FAR)
ATTEMPT = WholeNumber(
    "attempt",
    "Number of an attempt: the series as that attempt reported them, without what came later.",
    lowest=1,
    highest=LARGEST_32,
)


class MetricsView(APIView):
    @extend_schema(
        operation_id="jobs_metrics",
        parameters=[
            OpenApiParameter("names", str, description="Names of series, separated by commas. Without it, all."),
            POINTS.documented,
            AFTER_STEP.documented,
            TO_STEP.documented,
            ATTEMPT.documented,
        ],
        responses={
            200: inline_serializer(
                "Metrics",
                {
                    "series": serializers.DictField(child=SeriesSerializer(), help_text="Series by name."),
                    "last_step": serializers.IntegerField(
                        help_text="Last step of the returned series; -1 if there is none."
                    ),
                    "names": serializers.ListField(
                        child=serializers.CharField(), help_text="Names of all series that the job has."
                    ),
                },
            ),
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        """Read the metrics of a job.

        Returns series of the job, downsampled to at most `points` points each; the lowest and the highest value of
        every interval are retained. Where a restart or a later attempt repeated steps, its points replace the
        earlier ones."""
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
        last_step = max((int(points[rollups.STEP, -1]) for points in found.values()), default=-1)
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
                    "items": JobCurvesSerializer(many=True, help_text="Jobs in the order of `jobs`, or newest first."),
                    "points": serializers.IntegerField(
                        help_text=(
                            "Most points of each series in this response: fewer than requested if there are very many "
                            "series."
                        )
                    ),
                },
            ),
            **PROBLEMS,
        },
    )
    def post(self, request: Request) -> Response:
        """Query metrics of several jobs.

        Returns several series of several jobs: of those in `jobs`, or of the newest that match `filters`. Give
        exactly one of the two."""
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
        "steps": points[rollups.STEP].astype(np.int64),
        "values": np.ascontiguousarray(points[rollups.VALUE]),
        "times": points[rollups.TIME].astype(np.int64).astype("datetime64[us]"),
    }


def _points(points: Matrix, origin: datetime) -> dict[str, Any]:
    return {
        "steps": points[rollups.STEP].astype(np.int64),
        "values": np.ascontiguousarray(points[rollups.VALUE]),
        "seconds": _seconds(points[rollups.TIME], origin),
    }


def _averages(buckets: Matrix, origin: datetime) -> dict[str, Any]:
    return {
        "steps": buckets[rollups.LAST_STEP].astype(np.int64),
        "values": buckets[rollups.SUM] / buckets[rollups.COUNT],
        "lowest": np.ascontiguousarray(buckets[rollups.LOW]),
        "highest": np.ascontiguousarray(buckets[rollups.HIGH]),
        "seconds": _seconds(buckets[rollups.LAST_TIME], origin),
    }


def _seconds(micros: Any, origin: datetime) -> Any:
    return np.round(micros / 1e6 - origin.timestamp(), 3)
