"""Profiles of a job: request one while it runs, list them. Their traces are downloaded as artifacts."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import check_may_write, get_principal
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.profiles import ProfileRequestSerializer, ProfileSerializer
from athanor.artifacts import profiles
from athanor.jobs.selectors import job_of


class ProfileView(APIView):
    """Requests to `/jobs/{job_id}:profile`."""

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
        principal = get_principal(request)
        job = job_of(principal, job_id)
        check_may_write(principal, job.team_id)
        steps = parse_body(request, ProfileRequestSerializer)["steps"]

        def make() -> Response:
            return Response(
                ProfileSerializer(profiles.request(job.id, steps, principal.user.username)).data, status=202
            )

        return run_idempotently(request, make)


class ProfilesView(APIView):
    """Requests to `/jobs/{job_id}/profiles`."""

    @extend_schema(
        operation_id="jobs_profiles", responses={200: page_serializer("ProfilePage", ProfileSerializer), **PROBLEMS}
    )
    def get(self, request: Request, job_id: str) -> Response:
        """List the profiles of a job.

        Returns every profile that was requested of the job, with its state. The traces are an artifact and are
        downloaded as one."""
        rows = profiles.profiles_of(job_of(get_principal(request), job_id))
        return paginated_response(serialize_many(ProfileSerializer, rows))
