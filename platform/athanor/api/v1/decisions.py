"""/admin/decisions: what admission decided, from what, and whether the same would be decided again."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import principal
from athanor.api.pagination import LIMIT, NUMBERED, listed, position, serialize_many
from athanor.api.v1.operations import operator
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.core import tenancy
from athanor.core.errors import Conflict, NotFound
from athanor.scheduling import estimates, stored_cycles
from athanor.scheduling.models import AdmissionCycle


class DecisionSerializer(serializers.Serializer[AdmissionCycle]):
    """An admission cycle."""

    id = serializers.IntegerField(help_text="Number of the admission cycle.")
    time = serializers.DateTimeField(help_text="Time of the cycle, ISO 8601 in UTC.")
    digest = serializers.CharField(help_text="SHA-256 of the recorded snapshot, hexadecimal.")
    considered = serializers.IntegerField(help_text="Number of waiting jobs that were considered.")
    admitted = serializers.ListField(child=serializers.CharField(), help_text="Ids of the jobs that were started.")
    preempted = serializers.ListField(
        child=serializers.CharField(), help_text="Ids of the jobs that were asked to checkpoint and wait."
    )
    took_seconds = serializers.FloatField(source="seconds", help_text="Duration in seconds.")


class WholeDecisionSerializer(DecisionSerializer):
    """An admission cycle with everything that it considered and decided."""

    snapshot = serializers.SerializerMethodField(
        help_text="Everything that was known: quota tree, pools, budgets, settings, holding and waiting jobs."
    )
    decisions = serializers.SerializerMethodField(help_text="What was decided for each waiting job.")

    def get_snapshot(self, cycle: AdmissionCycle) -> dict[str, Any]:
        return stored_cycles.stored(cycle)[0]

    def get_decisions(self, cycle: AdmissionCycle) -> list[dict[str, Any]]:
        return stored_cycles.stored(cycle)[1]


class ReplaySerializer(serializers.Serializer[Any]):
    """Whether a recorded cycle would be decided the same way."""

    same = serializers.BooleanField(help_text="Whether the same was decided.")
    differing = serializers.ListField(
        child=serializers.CharField(), help_text="Ids of the jobs that were decided differently."
    )


class CalibrationSerializer(serializers.Serializer[estimates.Calibration]):
    """How good estimates of start times were."""

    judged = serializers.IntegerField(help_text="Number of estimates that were compared.")
    by_p50 = serializers.FloatField(
        allow_null=True,
        help_text=("Fraction of the jobs that had started by their P50; 0.5 is perfect. Null without an estimate."),
    )
    by_p90 = serializers.FloatField(
        allow_null=True,
        help_text=("Fraction of the jobs that had started by their P90; 0.9 is perfect. Null without an estimate."),
    )
    median_error_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Median difference between the P50 and the start, in seconds. Null without an estimate.",
    )


class DecisionsView(APIView):
    @extend_schema(
        operation_id="admin_decisions",
        parameters=NUMBERED,
        responses={200: page_of("DecisionPage", DecisionSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List admission decisions.

        Returns the admission cycles that started or preempted a job, newest first. They are stored for at most 30
        days. For platform administrators."""
        operator(request)
        rows = AdmissionCycle.objects.defer("snapshot", "decisions").order_by("-id")
        limit = LIMIT.read(request)
        if cursor := position(request):
            rows = rows.filter(id__lt=cursor)
        found = list(rows[: limit + 1])
        next_cursor = str(found[limit - 1].pk) if len(found) > limit else None
        return Response(listed(serialize_many(DecisionSerializer, found[:limit]), next_cursor))


class DecisionView(APIView):
    @extend_schema(operation_id="admin_decision", responses={200: WholeDecisionSerializer, **PROBLEMS})
    def get(self, request: Request, decision_id: int) -> Response:
        """Show an admission decision.

        Returns the cycle with everything that was known and what was decided for each waiting job. For platform
        administrators."""
        operator(request)
        return Response(WholeDecisionSerializer(_cycle(decision_id)).data)


class DecisionReplayView(APIView):
    @extend_schema(
        operation_id="admin_decision_replay",
        request=None,
        responses={200: ReplaySerializer, **PROBLEMS},
    )
    def post(self, request: Request, decision_id: int) -> Response:
        """Replay an admission decision.

        Decides again from the recorded snapshot. The outcome differs only if the policy's code has changed since.
        For platform administrators."""
        operator(request)
        try:
            differing = stored_cycles.differences(_cycle(decision_id))
        except ValueError as error:
            remedy = "it is no evidence any more; look into the audit trail of the database"
            raise Conflict("decision_changed", str(error), remedy=remedy) from error
        return Response({"same": not differing, "differing": differing})


class CalibrationView(APIView):
    @extend_schema(
        operation_id="queue_calibration",
        responses={200: CalibrationSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Show how good start estimates were.

        Compares the estimated with the real start times of the newest 500 estimates whose jobs have started."""
        principal(request)
        with tenancy.unrestricted():
            return Response(CalibrationSerializer(estimates.calibration()).data)


def _cycle(decision_id: int) -> AdmissionCycle:
    found = AdmissionCycle.objects.filter(pk=decision_id).first()
    if found is None:
        raise NotFound("decision", str(decision_id))
    return found
