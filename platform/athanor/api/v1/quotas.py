"""/quotas: the tree, what is used of it, and what changes it. Members of a team see its path; of others only sums."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import check_platform, principal
from athanor.api.bodies import RequestSerializer, read
from athanor.api.etags import IF_MATCH, guard, tag_of, tagged
from athanor.api.parameters import WholeNumber
from athanor.api.parsers import JSONParser, TextYamlParser, YamlParser
from athanor.api.v1.shapes import PROBLEMS, NamedSerializer
from athanor.core.errors import FieldProblem, Forbidden, Invalid
from athanor.operations import quota_history, quotas
from athanor.quotas import changes, selectors, services
from athanor.quotas.models import AdmissionSettings, QuotaNode
from athanor.quotas.tree import LIMITS, ChangesDocument, ProposalDocument, Tree, TreeDocument, document_of
from athanor.specs.validation import parsed

PARSERS = (JSONParser, YamlParser, TextYamlParser)
DAY = 86_400
MOST_DAYS = 366


class QuotaGrantSerializer(serializers.Serializer[Any]):
    accelerator = serializers.CharField()
    nominal = serializers.IntegerField(help_text="slots of its own")
    borrow_limit = serializers.IntegerField(allow_null=True, help_text="how many more its subtree may use; null: any")
    lend_limit = serializers.IntegerField(allow_null=True, help_text="how many of its own others may use; null: all")


class ShareSerializer(serializers.Serializer[quotas.Share]):
    accelerator = serializers.CharField()
    governed = serializers.BooleanField(help_text="false: no node of the tree has a grant of it, only pools bound it")
    nominal = serializers.IntegerField(help_text="of the whole subtree")
    used = serializers.IntegerField(help_text="slots held now by jobs of the subtree")
    borrowed = serializers.IntegerField(help_text="how many of those are beyond its own")
    lent = serializers.IntegerField(help_text="how many of its own others use")
    available = serializers.IntegerField(allow_null=True, help_text="how many more it could use now; null: no quota")
    teams = serializers.IntegerField(help_text="how many teams of the subtree hold some")


class QuotaNodeSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    kind = serializers.ChoiceField(choices=["organisation", "group", "team"])
    name = serializers.CharField()
    path = serializers.CharField()
    parent = serializers.CharField(allow_null=True)  # type: ignore[assignment] # a field, which DRF takes off the class
    depth = serializers.IntegerField()
    team = serializers.SerializerMethodField()
    weight = serializers.FloatField(help_text="its part of what its siblings share")
    max_running_jobs = serializers.IntegerField(allow_null=True)
    max_queued_jobs = serializers.IntegerField(allow_null=True)
    max_slots = serializers.IntegerField(allow_null=True)
    max_slots_per_job = serializers.IntegerField(allow_null=True)
    max_run_seconds = serializers.IntegerField(allow_null=True)
    max_storage_bytes = serializers.IntegerField(allow_null=True)
    grants = QuotaGrantSerializer(many=True)
    shares = ShareSerializer(many=True)
    running_jobs = serializers.IntegerField(help_text="jobs of the subtree that hold slots")
    queued_jobs = serializers.IntegerField()
    slots_used = serializers.IntegerField()

    @extend_schema_field(NamedSerializer(allow_null=True))
    def get_team(self, node: dict[str, Any]) -> dict[str, str] | None:
        return node["team"]  # type: ignore[no-any-return] # made by `node_data`


class QuotasSerializer(serializers.Serializer[Any]):
    version = serializers.IntegerField(help_text="higher with each change of the tree")
    whole = serializers.BooleanField(help_text="else only the paths of your teams are here")
    may_change = serializers.BooleanField()
    nodes = QuotaNodeSerializer(many=True, help_text="parents before children")


class AdmissionSettingsSerializer(RequestSerializer, serializers.ModelSerializer[AdmissionSettings]):
    half_life_seconds = serializers.IntegerField(
        min_value=60, max_value=365 * DAY, help_text="in which past use counts half in fair share"
    )
    age_step_seconds = serializers.IntegerField(
        min_value=0, max_value=365 * DAY, help_text="waiting so long counts as one priority class higher; 0: never"
    )
    protected_seconds = serializers.IntegerField(
        min_value=0, max_value=30 * DAY, help_text="nobody is preempted so early; doubled by each time before"
    )

    class Meta:
        model = AdmissionSettings
        fields = ("fair_share", "half_life_seconds", "age_step_seconds", "backfill", "preempt", "protected_seconds")


class OverSerializer(serializers.Serializer[quotas.Over]):
    node = serializers.CharField(help_text="its path")
    what = serializers.CharField(help_text="an accelerator, or the name of a limit")
    used = serializers.IntegerField()
    allowed = serializers.IntegerField()
    detail = serializers.CharField()


class TouchedJobSerializer(serializers.Serializer[quotas.TouchedJob]):
    id = serializers.CharField()
    team = serializers.CharField()
    slots = serializers.IntegerField()
    accelerator = serializers.CharField()
    why = serializers.CharField(allow_blank=True)


class QuotaPreviewSerializer(serializers.Serializer[quotas.Preview]):
    version = serializers.IntegerField()
    differences = serializers.ListField(child=serializers.CharField(), help_text="a line each")
    over = OverSerializer(many=True, help_text="who would use more than allowed; what runs goes on, nothing new starts")
    preempted = TouchedJobSerializer(many=True, help_text="asked to save a checkpoint and wait, that now run on")
    started = TouchedJobSerializer(many=True, help_text="would start at once, that now wait")
    not_started = TouchedJobSerializer(many=True, help_text="would start now, and would then wait")
    notes = serializers.ListField(child=serializers.CharField(), help_text="what is allowed and perhaps not meant")


class QuotaLineSerializer(serializers.Serializer[quota_history.Line]):
    accelerator = serializers.CharField()
    used = serializers.ListField(child=serializers.FloatField(), help_text="slots held on average, a number a day")
    nominal = serializers.ListField(
        child=serializers.IntegerField(), help_text="the subtree's own at the end of each day, of today now"
    )


class QuotaHistorySerializer(serializers.Serializer[quota_history.History]):
    id = serializers.CharField(source="node_id")
    storage_bytes = serializers.IntegerField(help_text="kept by the subtree's teams now")
    unreferenced_bytes = serializers.IntegerField(
        help_text="of storage_bytes: objects that jobs stored and that belong to no checkpoint, artifact or data set; "
        "deleted a day after their attempt"
    )
    lines = QuotaLineSerializer(many=True)


class QuotaUsageSerializer(serializers.Serializer[Any]):
    days = serializers.ListField(child=serializers.DateField(), help_text="in UTC; today, which is not over, last")
    nodes = QuotaHistorySerializer(many=True)


class QuotasView(APIView):
    parser_classes = PARSERS

    @extend_schema(operation_id="quotas_show", responses={200: QuotasSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        return _shown(request)

    @extend_schema(
        operation_id="quotas_change",
        parameters=[IF_MATCH],
        request={"application/json": ChangesDocument, "application/yaml": ChangesDocument},
        responses={200: QuotasSerializer, **PROBLEMS},
        description="Change some nodes, all of it or nothing. It holds at once; what runs above it is not stopped.",
    )
    def patch(self, request: Request) -> Response:
        who = manager(request)
        document = parsed(ChangesDocument, request.data, "invalid_quotas", "changes")
        services.change_tree(partial(changes.changed, changes=document.changes), who.user, _unchanged(request))
        return _shown(request)

    @extend_schema(
        operation_id="quotas_declare",
        parameters=[IF_MATCH],
        request={"application/json": TreeDocument, "application/yaml": TreeDocument},
        responses={200: QuotasSerializer, **PROBLEMS},
        description="The whole tree. Groups that are left out are removed; teams that are left out stay as they are.",
    )
    def put(self, request: Request) -> Response:
        who = manager(request)
        document = parsed(TreeDocument, request.data, "invalid_quotas", "tree")
        services.change_tree(partial(changes.declared, document=document), who.user, _unchanged(request))
        return _shown(request)


class QuotaDocumentView(APIView):
    @extend_schema(
        operation_id="quotas_document",
        responses={200: TreeDocument, **PROBLEMS},
        description="The tree as PUT /quotas takes it.",
    )
    def get(self, request: Request) -> Response:
        who = principal(request)
        if not sees_all(who):
            raise Forbidden(
                "role_missing",
                "the whole tree is for administrators and auditors of the platform",
                remedy="GET /api/v1/quotas shows the path of your team",
            )
        document = document_of(selectors.tree()).model_dump(mode="json", exclude_defaults=True)
        return Response({"organisation": document.get("organisation", {})}, headers={"ETag": _tag(selectors.version())})


class QuotaPreviewView(APIView):
    parser_classes = PARSERS

    @extend_schema(
        operation_id="quotas_preview",
        request={"application/json": ProposalDocument, "application/yaml": ProposalDocument},
        responses={200: QuotaPreviewSerializer, **PROBLEMS},
        description="What changes, or a whole tree, would do now. Changes nothing.",
    )
    def post(self, request: Request) -> Response:
        manager(request)
        found = quotas.preview(proposed(request.data))
        return Response(QuotaPreviewSerializer(found).data)


DAYS = WholeNumber("days", lowest=1, highest=MOST_DAYS, default=30)


class QuotaUsageView(APIView):
    @extend_schema(
        operation_id="quotas_usage",
        parameters=[DAYS.documented],
        responses={200: QuotaUsageSerializer, **PROBLEMS},
        description="Of the nodes that you see: slots held day by day, and bytes kept now.",
    )
    def get(self, request: Request) -> Response:
        who, tree, now = principal(request), selectors.tree(), timezone.now()
        days = DAYS.read(request)
        seen = visible(who, tree)
        nodes = [row for row in quota_history.history(tree, now, days).values() if row.node_id in seen]
        return Response(QuotaUsageSerializer({"days": quota_history.days_until(now, days), "nodes": nodes}).data)


class AdmissionSettingsView(APIView):
    @extend_schema(operation_id="quotas_settings", responses={200: AdmissionSettingsSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        principal(request)
        return tagged(request, AdmissionSettingsSerializer(services.settings()).data)

    @extend_schema(
        operation_id="quotas_change_settings",
        parameters=[IF_MATCH],
        request=AdmissionSettingsSerializer(partial=True),
        responses={200: AdmissionSettingsSerializer, **PROBLEMS},
        description="How admission decides. What is not named stays.",
    )
    def put(self, request: Request) -> Response:
        who = manager(request)
        asked = read(AdmissionSettingsSerializer, request, partial=True)
        unchanged: Callable[[AdmissionSettings], None] = guard(
            request, lambda row, tag: tag == tag_of(AdmissionSettingsSerializer(row).data)
        )
        services.change_settings(asked, who.user, unchanged)
        return tagged(request, AdmissionSettingsSerializer(services.settings()).data)


def manager(request: Request) -> Principal:
    who = principal(request)
    check_platform(who, Permission.MANAGE_QUOTAS)
    return who


def sees_all(who: Principal) -> bool:
    return Permission.OVERSEE in who.platform


def proposed(data: Any) -> Any:
    """From a proposal to what makes the wanted tree of the present one."""
    document = parsed(ProposalDocument, data, "invalid_quotas", "proposal")
    if (document.organisation is None) == (not document.changes):
        detail = "give either changes or organisation (a whole tree), not both and not neither"
        raise Invalid(
            "invalid_quotas", detail, remedy=detail, problems=(FieldProblem("/changes", "either_or", detail),)
        )
    if document.organisation is None:
        return partial(changes.changed, changes=document.changes)
    return partial(changes.declared, document=TreeDocument(organisation=document.organisation))


def node_data(row: quotas.Shown) -> dict[str, Any]:
    """What QuotaNodeSerializer describes."""
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


def visible(who: Principal, tree: Tree) -> set[str]:
    """Ids of the nodes that they see."""
    return {*tree} if sees_all(who) else quotas.seen_by(tree, who.team_ids)


def _shown(request: Request) -> Response:
    who, version, tree = principal(request), selectors.version(), selectors.tree()
    seen = visible(who, tree)
    rows = [row for row in quotas.shown(tree, selectors.used_of_nodes(tree)) if row.node.id in seen]
    data = QuotasSerializer(
        {
            "version": version,
            "whole": sees_all(who),
            "may_change": Permission.MANAGE_QUOTAS in who.platform,
            "nodes": [node_data(row) for row in rows],
        }
    ).data
    return tagged(request, data, _tag(version, data))


def _tag(version: int, data: Any = "") -> str:
    """What somebody decided upon is the tree; the rest of the tag is for what jobs use of it."""
    return f'W/"{version}-{tag_of(data)[3:]}'


def _unchanged(request: Request) -> services.Precondition:
    def holds(row: QuotaNode, tag: str) -> bool:
        return tag.startswith(f'W/"{row.version}-')

    return guard(request, holds)
