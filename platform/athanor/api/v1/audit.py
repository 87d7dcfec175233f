"""/audit: the trail, to search and to take away."""

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import audit, audit_export
from athanor.accounts.models import AuditEvent
from athanor.accounts.roles import Permission
from athanor.api.access import principal
from athanor.api.pagination import LIMIT, NUMBERED, listed, position, serialize_many
from athanor.api.parameters import time
from athanor.api.transfers import Download
from athanor.api.v1.shapes import PROBLEMS, page_of

FILTERS = [
    OpenApiParameter("action", str, description="itself and what lies below it: job, job.submit"),
    OpenApiParameter("actor", str, description="a username or a user's id"),
    OpenApiParameter("team", str, description="a team's id"),
    OpenApiParameter("target", str, description="an id"),
    OpenApiParameter("after", OpenApiTypes.DATETIME),
    OpenApiParameter("before", OpenApiTypes.DATETIME),
]


class AuditEventSerializer(serializers.Serializer[AuditEvent]):
    seq = serializers.IntegerField()
    time = serializers.DateTimeField()
    action = serializers.CharField()
    actor = serializers.CharField()
    actor_id = serializers.CharField(allow_blank=True)
    token_id = serializers.CharField(allow_blank=True)
    team_id = serializers.CharField(allow_blank=True)
    target_type = serializers.CharField()
    target_id = serializers.CharField()
    address = serializers.CharField(allow_blank=True)
    request_id = serializers.CharField(allow_blank=True)
    before = serializers.JSONField(help_text="null when there was nothing")
    after = serializers.JSONField(help_text="null when nothing is left")
    previous = serializers.CharField(allow_blank=True)
    digest = serializers.CharField()


class AuditView(APIView):
    @extend_schema(
        operation_id="audit_list",
        parameters=[*FILTERS, *NUMBERED],
        responses={200: page_of("AuditPage", AuditEventSerializer), **PROBLEMS},
        description="Newest first. All of it for platform administrators and auditors; its own for a team's.",
    )
    def get(self, request: Request) -> Response:
        rows = _asked(request)
        limit = LIMIT.read(request)
        if cursor := position(request):
            rows = rows.filter(seq__lt=cursor)
        found = list(rows[: limit + 1])
        next_cursor = str(found[limit - 1].seq) if len(found) > limit else None
        return Response(listed(serialize_many(AuditEventSerializer, found[:limit]), next_cursor))


class AuditExportView(APIView):
    @extend_schema(
        operation_id="audit_export",
        parameters=FILTERS,
        responses={(200, "application/x-ndjson"): OpenApiTypes.STR, **PROBLEMS},
        description="The same as JSON lines, oldest first, all of them. The last line, `end`, has the head of the "
        "trail, the number of lines and their digest, authenticated: check it with `manage.py verify_audit --file`.",
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        everything = Permission.READ_AUDIT in principal(request).platform and not _is_filtered(request)
        lines = audit_export.lines(_asked(request), lambda row: AuditEventSerializer(row).data, is_complete=everything)
        response = StreamingHttpResponse(Download(principal(request).user, lines), content_type="application/x-ndjson")
        response["Content-Disposition"] = 'attachment; filename="athanor-audit.jsonl"'
        return response


def _asked(request: Request) -> QuerySet[AuditEvent]:
    asked = request.query_params
    return audit.filtered(
        audit.visible_to(principal(request)),
        action=asked.get("action", ""),
        actor=asked.get("actor", ""),
        team=asked.get("team", ""),
        target=asked.get("target", ""),
        after=time(request, "after"),
        before=time(request, "before"),
    )


def _is_filtered(request: Request) -> bool:
    return any(request.query_params.get(parameter.name) for parameter in FILTERS)
