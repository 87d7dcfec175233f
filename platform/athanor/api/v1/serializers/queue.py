"""Serializers of the queue."""

from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import NamedSerializer, ReasonSerializer
from athanor.api.v1.serializers.jobs import WaitSerializer


class QueuedJobSerializer(serializers.Serializer[Any]):
    """A waiting job."""

    id = serializers.CharField()
    name = serializers.CharField(
        allow_null=True, help_text="Name of the job. Null if it belongs to a team that is not yours."
    )
    mine = serializers.BooleanField(help_text="Whether it belongs to a team of yours.")
    team = NamedSerializer(help_text="Team of the job.")
    priority = serializers.CharField(help_text="Priority class.")
    slots = serializers.IntegerField(help_text="Number of slots that it needs.")
    queued_at = serializers.DateTimeField(help_text="Time since which it waits, ISO 8601 in UTC.")
    desired = serializers.CharField(help_text="What users last asked for: `run`, `pause` (it is held) or `stop`.")
    reason = ReasonSerializer(allow_null=True, help_text="Why it waits. Null until admission has considered it.")
    wait = WaitSerializer(
        allow_null=True, help_text="What admission last found about it. Null until admission has considered it."
    )


class PoolQueueSerializer(serializers.Serializer[Any]):
    """The waiting jobs of a pool."""

    pool = serializers.CharField(help_text="The pool, as `CLUSTER/NAME`.")
    cluster = NamedSerializer(help_text="Cluster of the pool.")
    accelerator = serializers.CharField(help_text="Accelerator of the pool, or `cpu`.")
    enabled = serializers.BooleanField(help_text="Whether the cluster admits jobs.")
    slots = serializers.IntegerField(help_text="Slots of the pool, those of spare nodes included.")
    spare_slots = serializers.IntegerField(help_text="Slots of its spare nodes, which stay free of admitted jobs.")
    slots_used = serializers.IntegerField(help_text="Slots that jobs hold.")
    waiting_jobs = serializers.IntegerField(help_text="Number of waiting jobs of all teams.")
    waiting_slots = serializers.IntegerField(help_text="Slots that those need together.")
    waiting_teams = serializers.IntegerField(help_text="Number of teams that those belong to.")
    jobs = QueuedJobSerializer(many=True, help_text="Waiting jobs that you may see, in order.")
