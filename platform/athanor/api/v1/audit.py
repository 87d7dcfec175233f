"""/audit: search and export the audit trail."""

from django.db.models import QuerySet
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import audit, audit_export
from athanor.accounts.models import AuditEvent
from athanor.accounts.roles import Permission
from athanor.api.access import get_principal
from athanor.api.pagination import LIMIT, NUMBERED_PAGE_PARAMETERS, paginated_response, read_position, serialize_many
from athanor.api.parameters import time
from athanor.api.transfers import Download
from athanor.api.v1.serializers.audit import AuditEventSerializer
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.core.keyset import read_page

FILTERS = [
    OpenApiParameter("action", str, description="Only this action and those below it: `job` includes `job.submit`."),
    OpenApiParameter("actor", str, description="Only actions of the user with this username or id."),
    OpenApiParameter("team", str, description="Only records about the team with this id."),
    OpenApiParameter("target", str, description="Only records about the object with this id."),
    OpenApiParameter("after", OpenApiTypes.DATETIME, description="Only records at or after this time."),
    OpenApiParameter("before", OpenApiTypes.DATETIME, description="Only records before this time."),
]


class AuditView(APIView):
    """Requests to `/audit`."""

    @extend_schema(
        operation_id="audit_list",
        parameters=[*FILTERS, *NUMBERED_PAGE_PARAMETERS],
        responses={200: page_serializer("AuditPage", AuditEventSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Search the audit trail.

        Returns records, newest first. Platform administrators and auditors see all of them, administrators of a team
        those of their team."""
        rows = _asked(request)
        found, next_cursor = read_page(rows, LIMIT.read(request), read_position(request), key="seq")
        return paginated_response(serialize_many(AuditEventSerializer, found), next_cursor)


class AuditExportView(APIView):
    """Requests to `/audit:export`."""

    @extend_schema(
        operation_id="audit_export",
        parameters=FILTERS,
        responses={
            (200, "application/x-ndjson"): OpenApiResponse(OpenApiTypes.STR, description="Records as JSON lines."),
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> StreamingHttpResponse:
        """Export the audit trail.

        Returns the matching records as JSON lines, oldest first. The last line, `end`, contains the head of the
        trail, the number of lines and their digest, authenticated: check it with `manage.py verify_audit --file`."""
        everything = Permission.READ_AUDIT in get_principal(request).platform and not _is_filtered(request)
        lines = audit_export.lines(_asked(request), lambda row: AuditEventSerializer(row).data, is_complete=everything)
        response = StreamingHttpResponse(
            Download(get_principal(request).user, lines), content_type="application/x-ndjson"
        )
        response["Content-Disposition"] = 'attachment; filename="athanor-audit.jsonl"'
        return response


def _asked(request: Request) -> QuerySet[AuditEvent]:
    asked = request.query_params
    return audit.filtered(
        audit.visible_to(get_principal(request)),
        action=asked.get("action", ""),
        actor=asked.get("actor", ""),
        team=asked.get("team", ""),
        target=asked.get("target", ""),
        after=time(request, "after"),
        before=time(request, "before"),
    )


def _is_filtered(request: Request) -> bool:
    return any(request.query_params.get(parameter.name) for parameter in FILTERS)
