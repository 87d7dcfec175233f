"""Serializers of background reconcilers and orphaned objects."""

from typing import Any

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.backends.base import Presence
from athanor.fleet import orphans
from athanor.jobs.models import Attempt
from athanor.reconcilers import backlog


class SweeperSerializer(serializers.Serializer[backlog.State]):
    """A background reconciler and its backlog."""

    name = serializers.CharField(source="reconciler.task", help_text="Name of its task.")
    invariant = serializers.CharField(source="reconciler.invariant", help_text="What it maintains, as a sentence.")
    every_seconds = serializers.FloatField(source="reconciler.seconds", help_text="Interval between runs in seconds.")
    rows_due = serializers.IntegerField(help_text="Number of rows that wait for it.")
    oldest_due_seconds = serializers.FloatField(
        allow_null=True, help_text="Seconds for which the oldest of them has waited. Null if there is none."
    )
    ran_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Time of its last successful run, ISO 8601 in UTC. Null before the first, and without the broker, "
        "which keeps it.",
    )
    took_seconds = serializers.FloatField(
        allow_null=True, help_text="Duration of that run in seconds. Null before the first."
    )
    failed_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of its last failure, ISO 8601 in UTC. Null if it never failed."
    )
    error = serializers.CharField(allow_blank=True, help_text="The error of that failure. Empty if it never failed.")
    late = serializers.BooleanField(
        help_text="Whether it has not run for five of its intervals, which are at least 60 seconds while no work waits."
    )
    rows_failing = serializers.IntegerField(
        help_text="Number of rows whose last try failed unexpectedly; each is retried after a growing pause."
    )
    rows_given_up = serializers.IntegerField(
        help_text="Number of rows given up within the last 7 days after 12 unexpected failures in a row each. A job "
        "among them has failed with `platform_error` and has a `job.abandon` record in the audit trail."
    )


class LostObjectSerializer(serializers.Serializer[orphans.LostObject]):
    """An object on a cluster without a live attempt."""

    cluster_id = serializers.CharField(source="cluster.id", help_text="Id of the cluster.")
    cluster = serializers.CharField(source="cluster.name", help_text="Name of the cluster.")
    backend_name = serializers.CharField(help_text="Name of the object on the cluster.")
    attempt_id = serializers.CharField(
        allow_blank=True, help_text="Id of the ended attempt that it belonged to. Empty if there is none."
    )
    job_id = serializers.CharField(allow_blank=True, help_text="Id of that attempt's job. Empty if there is none.")
    why = serializers.CharField(help_text="Why it is an orphan, in words.")


class LostAttemptSerializer(serializers.Serializer[Attempt]):
    """A live attempt that was not found on its cluster."""

    attempt_id = serializers.CharField(source="id", help_text="Id of the attempt.")
    job_id = serializers.CharField(help_text="Id of its job.")
    cluster = serializers.CharField(source="job.pool.cluster.name", help_text="Name of the cluster.")
    backend_name = serializers.CharField(help_text="Name of the object that the cluster should have.")
    status = serializers.CharField(help_text="Status of the attempt: `prepared`, `submitted` or `running`.")
    absent_count = serializers.IntegerField(help_text="Number of consecutive observations that did not find it.")
    absent_since = serializers.DateTimeField(allow_null=True, help_text="Time of the first of those, ISO 8601 in UTC.")


class UnlistedSerializer(serializers.Serializer[orphans.Unlisted]):
    """A cluster whose objects are not known."""

    cluster = serializers.CharField(source="cluster.name", help_text="Name of the cluster.")
    why = serializers.CharField(help_text="Why its objects are not known.")


class OrphansSerializer(serializers.Serializer[orphans.Orphans]):
    """Objects without an attempt, and attempts without an object."""

    objects = LostObjectSerializer(many=True, help_text="Objects on a cluster without a live attempt, at most 500.")
    attempts = LostAttemptSerializer(
        many=True, help_text="Live attempts that were not found on their cluster, at most 500."
    )
    unlisted = UnlistedSerializer(many=True, help_text="Clusters whose objects are not known.")


class ObjectSerializer(RequestSerializer):
    """An object on a cluster."""

    cluster_id = serializers.CharField(max_length=60, help_text="Id of the cluster.")
    backend_name = serializers.CharField(max_length=80, help_text="Name of the object on the cluster.")


class AttemptIdSerializer(RequestSerializer):
    """The attempt to observe."""

    attempt_id = serializers.CharField(max_length=60, help_text="Id of the attempt.")


class SeenSerializer(serializers.Serializer[Any]):
    """What the cluster reported about an attempt."""

    attempt_id = serializers.CharField(help_text="Id of the attempt.")
    presence = serializers.ChoiceField(
        choices=[presence.value for presence in Presence],
        help_text="`present`, `finished`, `absent`, or `unknown` if the cluster does not know.",
    )
