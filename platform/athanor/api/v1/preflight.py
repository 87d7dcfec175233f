"""/jobs/{id}/preflights: what was measured before the first step of each attempt."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.preflight import PreflightSerializer
from athanor.jobs import selectors
from athanor.telemetry.preflights import preflights_of


class PreflightsView(APIView):
    """Requests to `/jobs/{job_id}/preflights`."""

    @extend_schema(
        operation_id="jobs_preflights",
        responses={200: page_serializer("PreflightPage", PreflightSerializer), **PROBLEMS},
    )
    def get(self, request: Request, job_id: str) -> Response:
        """List the preflights of a job.

        Returns the measurements that its attempts have made before their first step, if its spec has `preflight`, the
        newest first."""
        job = selectors.job_of(get_principal(request), job_id)
        rows = [
            {
                **stored.report.model_dump(),
                "attempt": stored.attempt,
                "time": stored.time,
                "result": stored.report.result,
            }
            for stored in preflights_of(job)
        ]
        return paginated_response(serialize_many(PreflightSerializer, rows))
