"""/jobs/{id}/metrics, and /metrics:query for many series of many jobs."""

from datetime import datetime
from typing import Any

import numpy as np
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.bodies import parse_body
from athanor.api.parameters import MAX_INT32, IntegerParameter
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.metrics import (
    MAX_POINTS,
    METRICS,
    METRICS_ANSWER,
    MIN_POINTS,
    QuerySerializer,
)
from athanor.core.errors import FieldProblem, Invalid
from athanor.jobs import selectors
from athanor.jobs.models import Job
from athanor.telemetry import curves, rollups
from athanor.telemetry.codec import Matrix
from athanor.telemetry.token_counts import token_counts

MAX_POINTS_PER_RESPONSE = 500_000  # points of all curves of one response, about ten megabytes
POINTS_HELP = "Maximum number of points per series. The width of the chart in pixels is enough."
POINTS = IntegerParameter("points", POINTS_HELP, min_value=MIN_POINTS, max_value=MAX_POINTS, default=500)
AFTER_STEP = IntegerParameter("after_step", "Only steps after this one.", min_value=-1, default=-1)
TO_STEP = IntegerParameter("to_step", "The last step.", max_value=curves.FAR, default=curves.FAR)
ATTEMPT = IntegerParameter(
    "attempt",
    "Number of an attempt: the series as that attempt reported them, without what came later.",
    min_value=1,
    max_value=MAX_INT32,
)


class MetricsView(APIView):
    """Requests to `/jobs/{job_id}/metrics`."""

    @extend_schema(
        operation_id="jobs_metrics",
        parameters=[
            OpenApiParameter("names", str, description="Names of series, separated by commas. Without it, all."),
            POINTS.openapi,
            AFTER_STEP.openapi,
            TO_STEP.openapi,
            ATTEMPT.openapi,
        ],
        responses={
            200: METRICS,
            **PROBLEMS,
        },
    )
    def get(self, request: Request, job_id: str) -> Response:
        """Read the metrics of a job.

        Returns series of the job, downsampled to at most `points` points each; the lowest and the highest value of
        every interval are retained. Where a restart or a later attempt repeated steps, its points replace the
        earlier ones."""
        job = selectors.job_of(get_principal(request), job_id)
        wanted = frozenset(name for name in request.query_params.get("names", "").split(",") if name)
        asked = curves.Asked(
            jobs=[job.id],
            names=wanted or None,
            points=POINTS.read(request),
            from_step=AFTER_STEP.read(request) + 1,
            to_step=TO_STEP.read(request),
            attempt=ATTEMPT.read_optional(request),
        )
        found = {name: points for (_, name), points in curves.curves(asked).items()}
        last_step = max((int(points[rollups.STEP, -1]) for points in found.values()), default=-1)
        series = {name: _with_times(points) for name, points in found.items()}
        answer = {"series": series, "last_step": last_step, "names": curves.names_of([job.id])}
        return Response({**answer, "tokens": token_counts(job.resolved_spec["training"])})


class MetricsQueryView(APIView):
    """Requests to `/metrics:query`."""

    @extend_schema(
        operation_id="metrics_query",
        request=QuerySerializer,
        responses={
            200: METRICS_ANSWER,
            **PROBLEMS,
        },
    )
    def post(self, request: Request) -> Response:
        """Query metrics of several jobs.

        Returns several series of several jobs: of those in `jobs`, or of the newest that match `filters`. Give
        exactly one of the two."""
        sent = parse_body(request, QuerySerializer)
        jobs = _jobs(request, sent)
        names = frozenset(sent["series"])
        points = min(sent["points"], max(MIN_POINTS, MAX_POINTS_PER_RESPONSE // max(1, len(jobs) * len(names))))
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
                {
                    "id": job.id,
                    "name": job.name,
                    "status": job.status,
                    "origin": origin.isoformat(),
                    "tokens": token_counts(job.resolved_spec["training"]),
                    "series": drawn,
                }
            )
        return Response({"items": items, "points": points, "names": curves.names_of([job.id for job in jobs])})


def _jobs(request: Request, sent: dict[str, Any]) -> list[Job]:
    """Return the named jobs in their order, or the newest that match. Raises NotFound for an invisible one."""
    if ("jobs" in sent) == ("filters" in sent):
        detail = "name either jobs or filters"
        raise Invalid("invalid", detail, remedy=detail, problems=(FieldProblem("/jobs", "choice", detail),))
    principal = get_principal(request)
    if "jobs" in sent:
        return selectors.jobs_by_id(principal, sent["jobs"])
    filters = sent["filters"]
    matching = selectors.filtered(
        principal,
        statuses=filters.get("status", []),
        team=filters.get("team", ""),
        project=filters.get("project", ""),
        query=filters.get("q", ""),
        labels=filters.get("labels", {}),
        created_by=selectors.creator(principal, filters.get("created_by", "")),
        created_after=filters.get("created_after"),
    )
    return selectors.newest(matching, sent["limit"])


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
