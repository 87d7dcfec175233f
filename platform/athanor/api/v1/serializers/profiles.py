"""Serializers of profiles of a job's steps."""

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.artifacts.models import Profile
from trainer.contract.run import MAX_PROFILED_STEPS

DEFAULT_STEPS = 3


class ProfileSerializer(serializers.Serializer[Profile]):
    """A request to trace steps of a job, and its result."""

    id = serializers.CharField()
    job = serializers.CharField(source="job_id", help_text="Id of the job.")
    attempt = serializers.CharField(source="attempt_id", help_text="Id of the attempt that is traced.")
    number = serializers.IntegerField(help_text="Number within the job, from 1.")
    status = serializers.ChoiceField(
        choices=Profile.State.values,
        source="state",
        help_text="`requested` until all nodes have stored their traces, then `ready`; or `failed`.",
    )
    reason = serializers.CharField(allow_blank=True, help_text="Why it failed. Empty otherwise.")
    steps = serializers.IntegerField(help_text="Number of steps requested. A run that ends sooner traces fewer.")
    first_step = serializers.IntegerField(
        allow_null=True, help_text="First step that was traced. Null until it is known."
    )
    last_step = serializers.IntegerField(
        allow_null=True, help_text="Last step that was traced. Null until it is known."
    )
    artifact = serializers.SerializerMethodField(
        help_text=(
            "Id of the artifact with the traces. Null until the profile is ready, or if the artifact was deleted."
        )
    )
    size_bytes = serializers.SerializerMethodField(
        help_text="Size of the traces in bytes. Null until the profile is ready."
    )
    requested_by = serializers.CharField(help_text="Username of the person or service account that requested it.")
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it became ready or failed, ISO 8601 in UTC. Null while it is open."
    )

    def get_artifact(self, row: Profile) -> str | None:
        """Return the id of the artifact with the traces, None without one or if it was deleted."""
        return row.artifact.id if row.artifact and row.artifact.deletion_id is None else None

    def get_size_bytes(self, row: Profile) -> int | None:
        """Return the size of the traces in bytes, None until they are stored."""
        return row.artifact.size_bytes if row.artifact else None


class ProfileRequestSerializer(RequestSerializer):
    """How much to trace."""

    steps = serializers.IntegerField(
        default=DEFAULT_STEPS, min_value=1, max_value=MAX_PROFILED_STEPS, help_text="Number of steps to trace."
    )
