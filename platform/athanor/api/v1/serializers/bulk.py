"""Serializers of actions on several jobs."""

from typing import Any

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import ProblemSerializer
from athanor.api.v1.serializers.jobs import JobSummarySerializer

MAX_JOBS_PER_REQUEST = 200


class BulkSerializer(RequestSerializer):
    """The jobs to act on."""

    ids = serializers.ListField(
        child=serializers.CharField(max_length=60),
        min_length=1,
        max_length=MAX_JOBS_PER_REQUEST,
        help_text="Ids of 1 to 200 jobs. An id that is given twice is acted on once.",
    )


class BulkItemSerializer(serializers.Serializer[Any]):
    """Result for one of several jobs."""

    id = serializers.CharField(help_text="Id of the job, as it was sent.")
    status = serializers.IntegerField(help_text="HTTP status that the same request for this job alone would have.")
    job = JobSummarySerializer(allow_null=True, help_text="The job after the request. Null if it was refused.")
    problem = ProblemSerializer(allow_null=True, help_text="Why it was refused. Null if it was not.")


class BulkResultSerializer(serializers.Serializer[Any]):
    """Results of an action on several jobs."""

    items = BulkItemSerializer(many=True, help_text="Results in the order of `ids`, each id once.")
