"""/admin: background reconcilers and orphaned objects. Of other teams' jobs it contains ids only."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, get_principal
from athanor.api.bodies import parse_body
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.operations import (
    AttemptIdSerializer,
    ObjectSerializer,
    OrphansSerializer,
    SeenSerializer,
    SweeperSerializer,
)
from athanor.core import tenancy
from athanor.fleet import orphans
from athanor.reconcilers import backlog


class SweepersView(APIView):
    """Requests to `/admin/sweepers`."""

    @extend_schema(
        operation_id="admin_sweepers",
        responses={200: page_serializer("SweeperPage", SweeperSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List background reconcilers.

        Returns each reconciler with the invariant that it maintains, its backlog and its last run. For platform
        administrators."""
        operator(request)
        with tenancy.unrestricted():
            return paginated_response(serialize_many(SweeperSerializer, backlog.states()))


class OrphansView(APIView):
    """Requests to `/admin/orphans`."""

    @extend_schema(
        operation_id="admin_orphans",
        responses={200: OrphansSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List orphaned objects.

        Asks every cluster what it runs and returns objects without a live attempt, and live attempts without an
        object. Takes as long as the slowest cluster. For platform administrators."""
        operator(request)
        with tenancy.unrestricted():
            return Response(OrphansSerializer(orphans.find()).data)


class OrphanCancelView(APIView):
    """Requests to `/admin/orphans:cancel`."""

    @extend_schema(
        operation_id="admin_orphan_cancel",
        request=ObjectSerializer,
        responses={202: ObjectSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Cancel an orphaned object.

        Asks a cluster to end an object that belongs to no live attempt. An object with a live attempt is refused
        with 409. For platform administrators."""
        principal = operator(request)
        asked = parse_body(request, ObjectSerializer)
        with tenancy.unrestricted():
            orphans.cancel_object(**asked, actor=principal.user)
        return Response(asked, status=202)


class OrphanObserveView(APIView):
    """Requests to `/admin/orphans:observe`."""

    @extend_schema(
        operation_id="admin_orphan_observe",
        request=AttemptIdSerializer,
        responses={200: SeenSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Observe an attempt now.

        Asks the cluster about a live attempt without waiting for the next sweep. For platform administrators."""
        principal = operator(request)
        attempt_id = parse_body(request, AttemptIdSerializer)["attempt_id"]
        with tenancy.unrestricted():
            presence = orphans.observe_attempt(attempt_id, principal.user)
        return Response({"attempt_id": attempt_id, "presence": presence.value})


def operator(request: Request) -> Principal:
    """Return the caller. Raises Forbidden without the permission to operate the platform."""
    principal = get_principal(request)
    check_platform(principal, Permission.OPERATE)
    return principal
