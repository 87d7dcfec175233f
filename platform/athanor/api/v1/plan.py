"""POST /jobs:plan: what a submission would do now."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.bodies import decode_body
from athanor.api.parsers import JSONParser, TextYamlParser, YamlParser
from athanor.api.v1 import submission
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.plan import Plan, serialize_plan
from athanor.artifacts import quota_checks, submissions
from athanor.jobs import services
from athanor.scheduling.job_plan import plan_job
from athanor.specs.v1 import JobSpec


class PlanView(APIView):
    """Requests to `/jobs:plan`."""

    parser_classes = (JSONParser, YamlParser, TextYamlParser)

    @extend_schema(
        operation_id="jobs_plan",
        request={"application/json": JobSpec, "application/yaml": JobSpec},
        responses={200: Plan, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Plan a submission without making it.

        Resolves the spec and returns what a submission of it would do now: warnings, memory, cost, the estimated
        start and, if the job would have to wait, alternatives that might start sooner. Nothing is stored. Needs the
        role member in the team."""
        principal = get_principal(request)
        written = decode_body(request)
        asked = submissions.validate_submission(principal, submission.team_of_spec(principal, written), written)
        warnings = services.check_fits(asked.spec, asked.pool) + quota_checks.check_plan(asked)
        return Response(serialize_plan(asked, warnings, plan_job(asked)))
