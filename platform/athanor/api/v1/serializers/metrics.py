"""Serializers of metrics."""

from typing import Any

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import build_serializer
from athanor.jobs.states import JobStatus
from athanor.telemetry import curves

MIN_POINTS = 4
MAX_POINTS = 5000
MAX_JOBS = 100
MAX_SERIES = 100


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


class TokenCountsSerializer(serializers.Serializer[Any]):
    """Tokens read after some steps: two arrays of equal length. Between two of the steps the count is linear."""

    steps = serializers.ListField(child=serializers.IntegerField(), help_text="Steps, ascending, from 0 to the last.")
    tokens = serializers.ListField(
        child=serializers.IntegerField(), help_text="Tokens that all steps up to each of these have read."
    )


TOKENS_HELP = "Tokens read after each step, by the job's batch size; null for a job that does not train."


class JobCurvesSerializer(serializers.Serializer[Any]):
    """The series of one job."""

    id = serializers.CharField(help_text="Id of the job.")
    name = serializers.CharField(help_text="Name of the job.")
    status = serializers.ChoiceField(choices=[status.value for status in JobStatus], help_text="Status of the job.")
    origin = serializers.DateTimeField(
        help_text="Time of the job's first start; before that, of its submission. ISO 8601 in UTC."
    )
    tokens = TokenCountsSerializer(allow_null=True, help_text=TOKENS_HELP)
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
    created_by = serializers.CharField(
        required=False, help_text="Jobs of the person or service account with this username, `@me` for your own."
    )
    created_after = serializers.DateTimeField(required=False, help_text="Jobs submitted after this time, RFC 3339.")


class QuerySerializer(RequestSerializer):
    """Which series of which jobs, and how many points."""

    jobs = serializers.ListField(
        child=serializers.CharField(max_length=40),
        required=False,
        max_length=MAX_JOBS,
        help_text="Ids of jobs. Give this or `filters`.",
    )
    filters = JobFiltersSerializer(required=False, help_text="Which jobs. Give this or `jobs`.")
    limit = serializers.IntegerField(
        min_value=1, max_value=MAX_JOBS, default=50, help_text="With `filters`: at most this many jobs, the newest."
    )
    series = serializers.ListField(
        child=serializers.CharField(max_length=200),
        min_length=1,
        max_length=MAX_SERIES,
        help_text="Names of series, such as `train/loss`.",
    )
    points = serializers.IntegerField(
        min_value=MIN_POINTS,
        max_value=MAX_POINTS,
        default=500,
        help_text="Maximum number of points per series. The width of the chart in pixels is enough.",
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
            "How series are downsampled: `extremes` returns reported points and loses no spike; `mean` returns the "
            "mean, the lowest and the highest value of each interval."
        ),
    )


METRICS = build_serializer(
    "Metrics",
    "Series of a job's metrics.",
    {
        "series": serializers.DictField(child=SeriesSerializer(), help_text="Series by name."),
        "last_step": serializers.IntegerField(help_text="Last step of the returned series; -1 if there is none."),
        "names": serializers.ListField(
            child=serializers.CharField(), help_text="Names of all series that the job has."
        ),
        "tokens": TokenCountsSerializer(allow_null=True, help_text=TOKENS_HELP),
    },
)

METRICS_ANSWER = build_serializer(
    "MetricsAnswer",
    "Series of several jobs.",
    {
        "items": JobCurvesSerializer(many=True, help_text="Jobs in the order of `jobs`, or newest first."),
        "points": serializers.IntegerField(
            help_text=(
                "Maximum number of points per series in this response: fewer than requested if there are very many "
                "series."
            )
        ),
        "names": serializers.ListField(
            child=serializers.CharField(), help_text="Names of all series that any of the jobs has."
        ),
    },
)
