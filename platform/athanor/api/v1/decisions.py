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
from athanor.scheduling import estimates, record
from athanor.scheduling.models import AdmissionCycle


class DecisionSerializer(serializers.Serializer[AdmissionCycle]):
    id = serializers.IntegerField()
    time = serializers.DateTimeField()
    digest = serializers.CharField(help_text="SHA-256 of the canonical JSON of all that was known")
    considered = serializers.IntegerField(help_text="waiting jobs")
    admitted = serializers.ListField(child=serializers.CharField(), help_text="ids of jobs")
    preempted = serializers.ListField(child=serializers.CharField(), help_text="ids of jobs")
    took_seconds = serializers.FloatField(source="seconds")


class WholeDecisionSerializer(DecisionSerializer):
    snapshot = serializers.SerializerMethodField(help_text="what was known")
    decisions = serializers.SerializerMethodField(help_text="what was said of each waiting job")

    def get_snapshot(self, cycle: AdmissionCycle) -> dict[str, Any]:
        return record.stored(cycle)[0]

    def get_decisions(self, cycle: AdmissionCycle) -> list[dict[str, Any]]:
        return record.stored(cycle)[1]


class ReplaySerializer(serializers.Serializer[Any]):
    same = serializers.BooleanField()
    differing = serializers.ListField(child=serializers.CharField(), help_text="ids of jobs decided otherwise now")


class CalibrationSerializer(serializers.Serializer[estimates.Calibration]):
    judged = serializers.IntegerField(help_text="jobs that were told a start and have started")
    by_p50 = serializers.FloatField(allow_null=True, help_text="share that had started by their P50; perfect is 0.5")
    by_p90 = serializers.FloatField(allow_null=True, help_text="share that had started by their P90; perfect is 0.9")
    median_error_seconds = serializers.FloatField(allow_null=True, help_text="of the P50")


class DecisionsView(APIView):
    @extend_schema(
        operation_id="admin_decisions",
        parameters=NUMBERED,
        responses={200: page_of("DecisionPage", DecisionSerializer), **PROBLEMS},
        description="Decisions of admission that started or preempted something, newest first.",
    )
    def get(self, request: Request) -> Response:
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
        operator(request)
        return Response(WholeDecisionSerializer(_cycle(decision_id)).data)


class DecisionReplayView(APIView):
    @extend_schema(
        operation_id="admin_decision_replay",
        request=None,
        responses={200: ReplaySerializer, **PROBLEMS},
        description="Decides again from what was stored. Only another version of the policy says anything else.",
    )
    def post(self, request: Request, decision_id: int) -> Response:
        operator(request)
        try:
            differing = record.differences(_cycle(decision_id))
        except ValueError as error:
            remedy = "it is no evidence any more; look into the audit trail of the database"
            raise Conflict("decision_changed", str(error), remedy=remedy) from error
        return Response({"same": not differing, "differing": differing})


class CalibrationView(APIView):
    @extend_schema(
        operation_id="queue_calibration",
        responses={200: CalibrationSerializer, **PROBLEMS},
        description="How well the start times told to waiting jobs were met, over the newest 500 that have started.",
    )
    def get(self, request: Request) -> Response:
        principal(request)
        with tenancy.unrestricted():
            return Response(CalibrationSerializer(estimates.calibration()).data)


def _cycle(decision_id: int) -> AdmissionCycle:
    found = AdmissionCycle.objects.filter(pk=decision_id).first()
    if found is None:
        raise NotFound("decision", str(decision_id))
    return found
