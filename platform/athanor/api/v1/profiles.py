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
    id = serializers.CharField()
    job = serializers.CharField(source="job_id")
    attempt = serializers.CharField(source="attempt_id")
    number = serializers.IntegerField(help_text="within the job, from 1")
    status = serializers.ChoiceField(choices=Profile.State.values, source="state")
    reason = serializers.CharField(allow_blank=True, help_text="why it failed")
    steps = serializers.IntegerField(help_text="asked for; a run that ends sooner gives fewer")
    first_step = serializers.IntegerField(allow_null=True)
    last_step = serializers.IntegerField(allow_null=True)
    artifact = serializers.SerializerMethodField(help_text="its traces, when it is ready; null when they were deleted")
    size_bytes = serializers.SerializerMethodField()
    requested_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)

    def get_artifact(self, row: Profile) -> str | None:
        return row.artifact.id if row.artifact and row.artifact.deletion_id is None else None

    def get_size_bytes(self, row: Profile) -> int | None:
        return row.artifact.size_bytes if row.artifact else None


class ProfileRequestSerializer(RequestSerializer):
    steps = serializers.IntegerField(default=DEFAULT_STEPS, min_value=1, max_value=MOST_PROFILED_STEPS)


class ProfileView(APIView):
    @extend_schema(
        operation_id="jobs_profile",
        parameters=IDEMPOTENT,
        request=ProfileRequestSerializer,
        responses={202: ProfileSerializer, **PROBLEMS},
        description="Traces the next steps of every rank of a running job. One request of a job at a time.",
    )
    def post(self, request: Request, job_id: str) -> Response:
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
        rows = profiles.profiles_of(job_of(principal(request), job_id))
        return Response(listed(serialize_many(ProfileSerializer, rows)))
