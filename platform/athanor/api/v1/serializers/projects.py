"""Serializers of projects."""

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import NamedSerializer
from athanor.jobs.models import Project


class ProjectSerializer(serializers.Serializer[Project]):
    """A group of a team's jobs."""

    id = serializers.CharField()
    team = NamedSerializer()
    name = serializers.CharField(help_text="Name within the team. Jobs name the project by it.")
    description = serializers.CharField(allow_blank=True, help_text="What the project is about. May be empty.")
    created_by = serializers.CharField(
        source="created_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the person or service account that created it. Null if it is not known.",
    )
    created_at = serializers.DateTimeField()
    archived_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was archived, ISO 8601 in UTC. Null if it accepts jobs."
    )
    job_count = serializers.IntegerField(help_text="Number of its jobs.")
    live_job_count = serializers.IntegerField(help_text="Number of its jobs that have not ended.")
    last_submitted_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the newest submission, ISO 8601 in UTC. Null without a job."
    )


class NewProjectSerializer(RequestSerializer):
    """A project to create."""

    name = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100, help_text="Name within the team.")
    team = serializers.CharField(
        required=False, help_text="Name or id of the team. May be left out if you belong to one team only."
    )
    description = serializers.CharField(
        required=False, allow_blank=True, max_length=2000, help_text="What the project is about."
    )


class ProjectChangeSerializer(RequestSerializer):
    """Changes of a project."""

    description = serializers.CharField(
        required=False, allow_blank=True, max_length=2000, help_text="What the project is about."
    )
    archived = serializers.BooleanField(
        required=False, help_text="Whether the project is archived and accepts no more jobs."
    )
