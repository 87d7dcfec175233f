"""/admin/decisions: recorded admission cycles and their replay; how good the start estimates were."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.pagination import LIMIT, NUMBERED_PAGE_PARAMETERS, paginated_response, read_position, serialize_many
from athanor.api.v1.operations import operator
from athanor.api.v1.serializers.common import NO_LONGER_STORED, PROBLEMS, page_serializer
from athanor.api.v1.serializers.decisions import (
    CalibrationSerializer,
    DecisionSerializer,
    ReplaySerializer,
    WholeDecisionSerializer,
)
from athanor.core import tenancy
from athanor.core.errors import Conflict
from athanor.core.keyset import read_page
from athanor.scheduling import estimates, stored_cycles


class DecisionsView(APIView):
    """Requests to `/admin/decisions`."""

    @extend_schema(
        operation_id="admin_decisions",
        parameters=NUMBERED_PAGE_PARAMETERS,
        responses={200: page_serializer("DecisionPage", DecisionSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List admission decisions.

        Returns the admission cycles that started or preempted a job, newest first. They are stored for
        ATHANOR_DECISIONS_DAYS (30), the newest 20,000 at most. For platform administrators."""
        operator(request)
        found, next_cursor = read_page(stored_cycles.cycles(), LIMIT.read(request), read_position(request))
        return paginated_response(serialize_many(DecisionSerializer, found), next_cursor)


class DecisionView(APIView):
    """Requests to `/admin/decisions/{decision_id}`."""

    @extend_schema(
        operation_id="admin_decision", responses={200: WholeDecisionSerializer, **NO_LONGER_STORED, **PROBLEMS}
    )
    def get(self, request: Request, decision_id: int) -> Response:
        """Show an admission decision.

        Returns the cycle with everything that was known and what was decided for each waiting job. For platform
        administrators."""
        operator(request)
        return Response(WholeDecisionSerializer(stored_cycles.cycle_of(decision_id)).data)


class DecisionReplayView(APIView):
    """Requests to `/admin/decisions/{decision_id}:replay`."""

    @extend_schema(
        operation_id="admin_decision_replay",
        request=None,
        responses={200: ReplaySerializer, **NO_LONGER_STORED, **PROBLEMS},
    )
    def post(self, request: Request, decision_id: int) -> Response:
        """Replay an admission decision.

        Decides again from the recorded snapshot. The outcome differs only if the policy's code has changed since.
        For platform administrators."""
        operator(request)
        try:
            differing = stored_cycles.differences(stored_cycles.cycle_of(decision_id))
        except ValueError as error:
            remedy = "it is no evidence any more; look into the audit trail of the database"
            raise Conflict("decision_changed", str(error), remedy=remedy) from error
        return Response({"same": not differing, "differing": differing})


class CalibrationView(APIView):
    """Requests to `/queue/calibration`."""

    @extend_schema(
        operation_id="queue_calibration",
        responses={200: CalibrationSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Show how good start estimates were.

        Compares the estimated with the real start times of the newest 500 estimates of jobs that have started."""
        get_principal(request)
        with tenancy.unrestricted():
            return Response(CalibrationSerializer(estimates.calibration()).data)
