"""Profiles of a job: ask for one while it runs, list them. Their traces are artifacts, downloaded as such."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import check_may_write, principal
from athanor.api.bodies import RequestSerializer, read
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import listed, serialize_many
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.artifacts import profiles
from athanor.artifacts.models import Profile
from athanor.jobs.selectors import job_of
from trainer.contract.run import MOST_PROFILED_STEPS

DEFAULT_STEPS = 3


class ProfileSerializer(serializers.Serializer[Any]):
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
        return row.artifact.id if row.artifact and row.artifact.deletion_id is None else None

    def get_size_bytes(self, row: Profile) -> int | None:
        return row.artifact.size_bytes if row.artifact else None


class ProfileRequestSerializer(RequestSerializer):
    """How much to trace."""

    steps = serializers.IntegerField(
        default=DEFAULT_STEPS, min_value=1, max_value=MOST_PROFILED_STEPS, help_text="Number of steps to trace."
    )


class ProfileView(APIView):
    @extend_schema(
        operation_id="jobs_profile",
        parameters=IDEMPOTENT,
        request=ProfileRequestSerializer,
        responses={202: ProfileSerializer, **PROBLEMS},
    )
    def post(self, request: Request, job_id: str) -> Response:
        """Profile the next steps of a job.

        Asks every rank of a running job to trace its next steps. A job has one open request at a time. The result is
        listed by `GET /jobs/{job_id}/profiles`. Needs the role member in the team."""
        who = principal(request)
        job = job_of(who, job_id)
        check_may_write(who, job.team_id)
        steps = read(ProfileRequestSerializer, request)["steps"]

        def make() -> Response:
            return Response(ProfileSerializer(profiles.request(job.id, steps, who.user.username)).data, status=202)

        return once(request, make)


class ProfilesView(APIView):
    @extend_schema(operation_id="jobs_profiles", responses={200: page_of("ProfilePage", ProfileSerializer), **PROBLEMS})
    def get(self, request: Request, job_id: str) -> Response:
        """List the profiles of a job.

        Returns every profile that was requested of the job, with its state. The traces are an artifact and are
        downloaded as one."""
        rows = profiles.profiles_of(job_of(principal(request), job_id))
        return Response(listed(serialize_many(ProfileSerializer, rows)))
