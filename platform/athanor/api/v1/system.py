"""/jobs/{id}/system and /efficiency: load and health of the machines of a job, and how well it used them."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.parameters import IntegerParameter
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.efficiency import EfficiencySerializer, serialize_efficiency
from athanor.api.v1.serializers.system import SystemSerializer, serialize_system
from athanor.jobs import selectors
from athanor.telemetry import efficiency, system

POINTS = IntegerParameter(
    "points", "Maximum number of intervals per series, about.", min_value=4, max_value=2000, default=300
)


class SystemView(APIView):
    """Requests to `/jobs/{job_id}/system`."""

    @extend_schema(
        operation_id="jobs_system", parameters=[POINTS.openapi], responses={200: SystemSerializer, **PROBLEMS}
    )
    def get(self, request: Request, job_id: str) -> Response:
        """Read the system series of a job.

        Returns load, memory, pressure, temperatures and the state of GPUs, sampled every ten seconds on each node of
        the job. A series has the mean, the lowest and the highest value over all nodes in each interval, with the node
        of the extremes. The newest sample of each node is beside them."""
        job = selectors.job_of(get_principal(request), job_id)
        seconds, series = system.series_of(job, POINTS.read(request))
        return Response(serialize_system(seconds, series, system.nodes_of(job)))


class EfficiencyView(APIView):
    """Requests to `/jobs/{job_id}/efficiency`."""

    @extend_schema(operation_id="jobs_efficiency", responses={200: EfficiencySerializer, **PROBLEMS})
    def get(self, request: Request, job_id: str) -> Response:
        """Show how well a job used its slots.

        Returns its productive slot time and the cost of the rest, by the ledger of `GET /jobs/{job_id}/goodput`;
        utilisation, peak memory, power and energy; and for a job that has ended, changes of its spec with which a job
        like it would cost less. What is not known is null."""
        job = selectors.job_of(get_principal(request), job_id)
        return Response(EfficiencySerializer(serialize_efficiency(efficiency.efficiency_of(job), job)).data)
