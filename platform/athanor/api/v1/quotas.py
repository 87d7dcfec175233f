"""/quotas: the quota tree, its use, previews and changes. Members see the path of their teams, with sums of others."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, get_principal
from athanor.api.bodies import parse_body, parse_document
from athanor.api.etags import IF_MATCH, compute_etag, if_match_check, with_etag
from athanor.api.parameters import IntegerParameter
from athanor.api.parsers import JSONParser, TextYamlParser, YamlParser
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.quotas import (
    AdmissionSettingsSerializer,
    QuotaPreviewSerializer,
    QuotasSerializer,
    QuotaUsageSerializer,
)
from athanor.clusters.selectors import accelerators
from athanor.core.errors import FieldProblem, Forbidden, Invalid
from athanor.quotas import changes, selectors, services, usage
from athanor.quotas.models import AdmissionSettings, QuotaNode
from athanor.quotas.tree import LIMITS, ChangesDocument, NodeChange, ProposalDocument, Tree, TreeDocument, document_of
from athanor.scheduling import quota_history, quota_preview

PARSERS = (JSONParser, YamlParser, TextYamlParser)
MAX_DAYS = 366


class QuotasView(APIView):
    """Requests to `/quotas`."""

    parser_classes = PARSERS

    @extend_schema(operation_id="quotas_show", responses={200: QuotasSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """Show the quota tree.

        Returns nodes with their limits and current use. Members see the path of their teams; platform administrators
        and auditors see the whole tree. The response has an `ETag`."""
        return _tree_response(request)

    @extend_schema(
        operation_id="quotas_change",
        parameters=[IF_MATCH],
        request={"application/json": ChangesDocument, "application/yaml": ChangesDocument},
        responses={200: QuotasSerializer, **PROBLEMS},
    )
    def patch(self, request: Request) -> Response:
        """Change nodes of the quota tree.

        Applies the changes in order, all of them or none. They take effect immediately; running jobs above a new
        limit are not stopped. For platform administrators."""
        principal = manager(request)
        document = parse_document(request, ChangesDocument, "invalid_quotas", "changes")
        services.change_tree(_changed(document.changes), principal.user, _unchanged(request))
        return _tree_response(request)

    @extend_schema(
        operation_id="quotas_declare",
        parameters=[IF_MATCH],
        request={"application/json": TreeDocument, "application/yaml": TreeDocument},
        responses={200: QuotasSerializer, **PROBLEMS},
    )
    def put(self, request: Request) -> Response:
        """Replace the quota tree.

        Makes the tree equal to the document. Groups that are left out are removed; teams that are left out stay as
        they are. For platform administrators."""
        principal = manager(request)
        document = parse_document(request, TreeDocument, "invalid_quotas", "tree")
        services.change_tree(_declared(document), principal.user, _unchanged(request))
        return _tree_response(request)


class QuotaDocumentView(APIView):
    """Requests to `/quotas/document`."""

    @extend_schema(
        operation_id="quotas_document",
        responses={200: TreeDocument, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Get the quota tree as a document.

        Returns the tree as `PUT /quotas` accepts it. For platform administrators and auditors."""
        principal = get_principal(request)
        if not sees_all(principal):
            raise Forbidden(
                "role_missing",
                "the complete tree is for administrators and auditors of the platform",
                remedy="GET /api/v1/quotas shows the path of your team",
            )
        document = document_of(selectors.tree()).model_dump(mode="json", exclude_defaults=True)
        return Response({"organisation": document.get("organisation", {})}, headers={"ETag": _tag(selectors.version())})


class QuotaPreviewView(APIView):
    """Requests to `/quotas:preview`."""

    parser_classes = PARSERS

    @extend_schema(
        operation_id="quotas_preview",
        request={"application/json": ProposalDocument, "application/yaml": ProposalDocument},
        responses={200: QuotaPreviewSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Preview a change of the quota tree.

        Returns what changes, or a replacement of the whole tree, would do now: differences, nodes above a limit, and
        jobs that would be preempted, started or not started. Nothing is changed. For platform administrators."""
        manager(request)
        found = quota_preview.preview(_proposed_tree(request))
        return Response(QuotaPreviewSerializer(found).data)


DAYS = IntegerParameter("days", "Number of days, today included.", min_value=1, max_value=MAX_DAYS, default=30)


class QuotaUsageView(APIView):
    """Requests to `/quotas/usage`."""

    @extend_schema(
        operation_id="quotas_usage",
        parameters=[DAYS.openapi],
        responses={200: QuotaUsageSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Show the use of quotas by day.

        Returns the average number of slots held per day, and the bytes stored now, of the nodes that you can see."""
        principal, tree, now = get_principal(request), selectors.tree(), timezone.now()
        days = DAYS.read(request)
        seen = visible(principal, tree)
        nodes = [row for row in quota_history.history(tree, now, days).values() if row.node_id in seen]
        return Response(QuotaUsageSerializer({"days": quota_history.days_until(now, days), "nodes": nodes}).data)


class AdmissionSettingsView(APIView):
    """Requests to `/quotas/settings`."""

    @extend_schema(operation_id="quotas_settings", responses={200: AdmissionSettingsSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """Show the admission settings.

        Returns how admission orders jobs and whether it preempts. The response has an `ETag`."""
        get_principal(request)
        return with_etag(request, AdmissionSettingsSerializer(services.settings()).data)

    @extend_schema(
        operation_id="quotas_change_settings",
        parameters=[IF_MATCH],
        request=AdmissionSettingsSerializer(partial=True),
        responses={200: AdmissionSettingsSerializer, **PROBLEMS},
    )
    def put(self, request: Request) -> Response:
        """Change the admission settings.

        Changes the fields that are sent; the others stay. They apply from the next admission cycle. For platform
        administrators."""
        principal = manager(request)
        asked = parse_body(request, AdmissionSettingsSerializer, partial=True)
        unchanged: Callable[[AdmissionSettings], None] = if_match_check(
            request, lambda row, tag: tag == compute_etag(AdmissionSettingsSerializer(row).data)
        )
        services.change_settings(asked, principal.user, unchanged)
        return with_etag(request, AdmissionSettingsSerializer(services.settings()).data)


def manager(request: Request) -> Principal:
    """Return the caller. Raises Forbidden without the permission to manage quotas."""
    principal = get_principal(request)
    check_platform(principal, Permission.MANAGE_QUOTAS)
    return principal


def sees_all(principal: Principal) -> bool:
    """Return whether the caller may see the complete tree."""
    return Permission.OVERSEE in principal.platform


def _proposed_tree(request: Request) -> Callable[[Tree], Tree]:
    """Return the function that turns the current tree into the proposed one."""
    document = parse_document(request, ProposalDocument, "invalid_quotas", "proposal")
    if (document.organisation is None) == (not document.changes):
        detail = "give either changes or organisation (a whole tree), not both and not neither"
        raise Invalid(
            "invalid_quotas", detail, remedy=detail, problems=(FieldProblem("/changes", "either_or", detail),)
        )
    if document.organisation is None:
        return _changed(document.changes)
    return _declared(TreeDocument(organisation=document.organisation))


def _changed(wanted: Sequence[NodeChange]) -> Callable[[Tree], Tree]:
    return partial(changes.changed, changes=wanted, accelerators=accelerators())


def _declared(document: TreeDocument) -> Callable[[Tree], Tree]:
    return partial(changes.declared, document=document, accelerators=accelerators())


def _serialize_node(row: usage.NodeUsage) -> dict[str, Any]:
    """Return a node as QuotaNodeSerializer represents it."""
    node = row.node
    return {
        "id": node.id,
        "kind": "organisation" if node.parent is None else "team" if node.team else "group",
        "name": node.name,
        "path": row.path,
        "parent": node.parent,
        "depth": row.depth,
        "team": {"id": node.team_id, "name": node.team} if node.team else None,
        "weight": node.weight,
        **{name: node.limits.get(name) for name in LIMITS},
        "grants": [{"accelerator": name, **grant.model_dump()} for name, grant in node.grants.items()],
        "shares": row.shares,
        "running_jobs": row.used.running_jobs,
        "queued_jobs": row.used.queued_jobs,
        "slots_used": row.used.slots_total,
    }


def visible(principal: Principal, tree: Tree) -> set[str]:
    """Return the ids of the nodes that the caller may see."""
    return {*tree} if sees_all(principal) else usage.nodes_visible_to(tree, principal.team_ids)


def _tree_response(request: Request) -> Response:
    principal, version, tree = get_principal(request), selectors.version(), selectors.tree()
    seen = visible(principal, tree)
    rows = [row for row in usage.usage_of_nodes(tree, selectors.used_of_nodes(tree)) if row.node.id in seen]
    data = QuotasSerializer(
        {
            "version": version,
            "whole": sees_all(principal),
            "may_change": Permission.MANAGE_QUOTAS in principal.platform,
            "nodes": [_serialize_node(row) for row in rows],
        }
    ).data
    return with_etag(request, data, _tag(version, data))


def _tag(version: int, data: Any = "") -> str:
    """Return an ETag whose first part changes with the tree only, not with its use: If-Match compares it."""
    return f'W/"{version}-{compute_etag(data)[3:]}'


def _unchanged(request: Request) -> services.Precondition:
    def holds(row: QuotaNode, tag: str) -> bool:
        return tag.startswith(f'W/"{row.version}-')

    return if_match_check(request, holds)
