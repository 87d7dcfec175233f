"""/quotas: the tree, what is used of it, and what changes it. Members of a team see its path; of others only sums."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

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
from athanor.quotas import changes, selectors, services, usage
from athanor.quotas.models import AdmissionSettings, QuotaNode
from athanor.quotas.tree import LIMITS, ChangesDocument, ProposalDocument, Tree, TreeDocument, document_of
from athanor.scheduling import quota_history, quota_preview
from athanor.specs.validation import parsed

PARSERS = (JSONParser, YamlParser, TextYamlParser)
DAY = 86_400
MOST_DAYS = 366


class QuotaGrantSerializer(serializers.Serializer[Any]):
    """Slots of one accelerator that a node has of its own."""

    accelerator = serializers.CharField(help_text="The accelerator, or `cpu`.")
    nominal = serializers.IntegerField(help_text="Slots of the node's own.")
    borrow_limit = serializers.IntegerField(
        allow_null=True, help_text="Most slots beyond its own that the subtree may use. Null: no limit."
    )
    lend_limit = serializers.IntegerField(
        allow_null=True, help_text="Most slots of its own that others may use. Null: all."
    )


class ShareSerializer(serializers.Serializer[usage.Share]):
    """Quota and use of one accelerator in a node's subtree."""

    accelerator = serializers.CharField(help_text="The accelerator, or `cpu`.")
    governed = serializers.BooleanField(
        help_text="Whether any node of the tree has a grant of it. If not, only pools limit its use."
    )
    nominal = serializers.IntegerField(help_text="Slots that the whole subtree has of its own.")
    used = serializers.IntegerField(help_text="Slots that jobs of the subtree hold now.")
    borrowed = serializers.IntegerField(help_text="How many of those exceed its own.")
    lent = serializers.IntegerField(help_text="How many of its own others use.")
    available = serializers.IntegerField(
        allow_null=True, help_text="Slots that it could use in addition now. Null if it has no quota."
    )
    teams = serializers.IntegerField(help_text="Number of teams of the subtree that hold some.")


class QuotaNodeSerializer(serializers.Serializer[Any]):
    """A node of the quota tree with its limits and use. Limits apply to the subtree."""

    id = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=["organisation", "group", "team"], help_text="`organisation` (the root), `group` or `team` (a leaf)."
    )
    name = serializers.CharField(help_text="Name, unique below its parent.")
    path = serializers.CharField(
        help_text=("Names down to the node, joined by `/`, such as `research/vision`. The root's path is its name.")
    )
    parent = serializers.CharField(  # type: ignore[assignment] # a field, which DRF takes off the class
        allow_null=True, help_text="Id of its parent. Null for the root."
    )
    depth = serializers.IntegerField(help_text="Number of nodes above it.")
    team = serializers.SerializerMethodField(help_text="Team of a leaf. Null for others.")
    weight = serializers.FloatField(help_text="Weight against its siblings in fair-share ranking.")
    max_running_jobs = serializers.IntegerField(
        allow_null=True, help_text="Most jobs of the subtree that may hold slots at the same time. Null: no limit."
    )
    max_queued_jobs = serializers.IntegerField(
        allow_null=True, help_text="Most jobs of the subtree that may wait at the same time. Null: no limit."
    )
    max_slots = serializers.IntegerField(
        allow_null=True, help_text="Most slots that jobs of the subtree may hold at the same time. Null: no limit."
    )
    max_slots_per_job = serializers.IntegerField(allow_null=True, help_text="Most slots of one job. Null: no limit.")
    max_run_seconds = serializers.IntegerField(
        allow_null=True, help_text="Longest `time_limit_seconds` of a job. Null: no limit."
    )
    max_storage_bytes = serializers.IntegerField(
        allow_null=True,
        help_text="Most bytes that the subtree may store before new data and jobs are refused. Null: no limit.",
    )
    grants = QuotaGrantSerializer(many=True, help_text="Slots of its own, by accelerator.")
    shares = ShareSerializer(many=True, help_text="Quota and use of its subtree, by accelerator.")
    running_jobs = serializers.IntegerField(help_text="Jobs of the subtree that hold slots.")
    queued_jobs = serializers.IntegerField(help_text="Jobs of the subtree that wait.")
    slots_used = serializers.IntegerField(help_text="Slots that jobs of the subtree hold, of all accelerators.")

    @extend_schema_field(NamedSerializer(allow_null=True))
    def get_team(self, node: dict[str, Any]) -> dict[str, str] | None:
        return node["team"]  # type: ignore[no-any-return] # made by `node_data`


class QuotasSerializer(serializers.Serializer[Any]):
    """The quota tree as the caller sees it."""

    version = serializers.IntegerField(help_text="Version of the tree. It grows with each change.")
    whole = serializers.BooleanField(
        help_text="Whether all nodes are listed. If not, only the paths of your teams are."
    )
    may_change = serializers.BooleanField(help_text="Whether you may change the tree.")
    nodes = QuotaNodeSerializer(many=True, help_text="Nodes, parents before children.")


class AdmissionSettingsSerializer(RequestSerializer, serializers.ModelSerializer[AdmissionSettings]):
    """How admission orders and preempts jobs."""

    half_life_seconds = serializers.IntegerField(
        min_value=60, max_value=365 * DAY, help_text="Half-life of past usage in fair-share ranking, in seconds."
    )
    age_step_seconds = serializers.IntegerField(
        min_value=0,
        max_value=365 * DAY,
        help_text=(
            "Waiting time in seconds that counts as one priority class. 0: waiting does not raise the priority."
        ),
    )
    protected_seconds = serializers.IntegerField(
        min_value=0,
        max_value=30 * DAY,
        help_text=(
            "Minimum run time in seconds before a job can be preempted. It doubles with each preemption of the job."
        ),
    )

    class Meta:
        model = AdmissionSettings
        fields = ("fair_share", "half_life_seconds", "age_step_seconds", "backfill", "preempt", "protected_seconds")
        extra_kwargs: ClassVar[dict[str, dict[str, str]]] = {
            "fair_share": {"help_text": "Whether teams are ranked by their share of past and present usage."},
            "backfill": {"help_text": "Whether a job may start before an earlier one that it does not delay."},
            "preempt": {"help_text": "Whether running jobs may be asked to checkpoint and wait for others."},
        }


class OverSerializer(serializers.Serializer[quota_preview.Overuse]):
    """A node that uses more than it would be allowed to."""

    node = serializers.CharField(help_text="Path of the node.")
    what = serializers.CharField(help_text="An accelerator, or the name of a limit.")
    used = serializers.IntegerField(help_text="What is used: slots, jobs or bytes.")
    allowed = serializers.IntegerField(help_text="What would be allowed, in the same unit.")
    detail = serializers.CharField(help_text="The same as a sentence.")


class TouchedJobSerializer(serializers.Serializer[quota_preview.AffectedJob]):
    """A job that a change would affect."""

    id = serializers.CharField(help_text="Id of the job.")
    team = serializers.CharField(help_text="Name of its team.")
    slots = serializers.IntegerField(help_text="Number of its slots.")
    accelerator = serializers.CharField(help_text="Accelerator of its pool.")
    why = serializers.CharField(allow_blank=True, help_text="Reason, in words. May be empty.")


class QuotaPreviewSerializer(serializers.Serializer[quota_preview.Preview]):
    """What a change of the quota tree would do now."""

    version = serializers.IntegerField(help_text="Version of the tree that the preview started from.")
    differences = serializers.ListField(
        child=serializers.CharField(), help_text="What would change in the tree, a line each."
    )
    over = OverSerializer(
        many=True, help_text="Nodes that use more than would be allowed. What runs continues; nothing new starts there."
    )
    preempted = TouchedJobSerializer(
        many=True, help_text="Jobs that would be asked to checkpoint and wait, at most 100."
    )
    started = TouchedJobSerializer(many=True, help_text="Waiting jobs that would start now, at most 100.")
    not_started = TouchedJobSerializer(
        many=True, help_text="Jobs that are about to start and would wait instead, at most 100."
    )
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="What is allowed but perhaps not intended, a sentence each."
    )


class QuotaLineSerializer(serializers.Serializer[quota_history.Line]):
    """Use of one accelerator by day."""

    accelerator = serializers.CharField(help_text="The accelerator, or `cpu`.")
    used = serializers.ListField(
        child=serializers.FloatField(), help_text="Average number of slots held, for each of `days`."
    )
    nominal = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="Slots that the subtree had of its own at the end of each of `days`; for today, now.",
    )


class QuotaHistorySerializer(serializers.Serializer[quota_history.History]):
    """Use of a node's subtree by day."""

    id = serializers.CharField(source="node_id", help_text="Id of the node.")
    storage_bytes = serializers.IntegerField(help_text="Bytes that the subtree's teams store now.")
    unreferenced_bytes = serializers.IntegerField(
        help_text=(
            "Part of `storage_bytes` in objects that belong to no checkpoint, artifact or data set. They "
            "are deleted a day after their attempt."
        )
    )
    lines = QuotaLineSerializer(many=True, help_text="Use by accelerator.")


class QuotaUsageSerializer(serializers.Serializer[Any]):
    """Use of quotas by day."""

    days = serializers.ListField(
        child=serializers.DateField(), help_text="Days in UTC. Today, which is not over, is last."
    )
    nodes = QuotaHistorySerializer(many=True, help_text="The nodes that you can see.")


class QuotasView(APIView):
    parser_classes = PARSERS

    @extend_schema(operation_id="quotas_show", responses={200: QuotasSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """Show the quota tree.

        Returns nodes with their limits and current use. Members see the path of their teams; platform administrators
        and auditors see the whole tree. The response has an `ETag`."""
        return _shown(request)

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
        who = manager(request)
        document = parsed(ChangesDocument, request.data, "invalid_quotas", "changes")
        services.change_tree(partial(changes.changed, changes=document.changes), who.user, _unchanged(request))
        return _shown(request)

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
        who = manager(request)
        document = parsed(TreeDocument, request.data, "invalid_quotas", "tree")
        services.change_tree(partial(changes.declared, document=document), who.user, _unchanged(request))
        return _shown(request)


class QuotaDocumentView(APIView):
    @extend_schema(
        operation_id="quotas_document",
        responses={200: TreeDocument, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Get the quota tree as a document.

        Returns the tree as `PUT /quotas` accepts it. For platform administrators and auditors."""
        who = principal(request)
        if not sees_all(who):
            raise Forbidden(
                "role_missing",
                "the complete tree is for administrators and auditors of the platform",
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
    )
    def post(self, request: Request) -> Response:
        """Preview a change of the quota tree.

        Returns what changes, or a replacement of the whole tree, would do now: differences, nodes above a limit, and
        jobs that would be preempted, started or not started. Nothing is changed. For platform administrators."""
        manager(request)
        found = quota_preview.preview(proposed(request.data))
        return Response(QuotaPreviewSerializer(found).data)


DAYS = WholeNumber("days", "Number of days, today included.", lowest=1, highest=MOST_DAYS, default=30)


class QuotaUsageView(APIView):
    @extend_schema(
        operation_id="quotas_usage",
        parameters=[DAYS.documented],
        responses={200: QuotaUsageSerializer, **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Show the use of quotas by day.

        Returns the average number of slots held per day, and the bytes stored now, of the nodes that you can see."""
        who, tree, now = principal(request), selectors.tree(), timezone.now()
        days = DAYS.read(request)
        seen = visible(who, tree)
        nodes = [row for row in quota_history.history(tree, now, days).values() if row.node_id in seen]
        return Response(QuotaUsageSerializer({"days": quota_history.days_until(now, days), "nodes": nodes}).data)


class AdmissionSettingsView(APIView):
    @extend_schema(operation_id="quotas_settings", responses={200: AdmissionSettingsSerializer, **PROBLEMS})
    def get(self, request: Request) -> Response:
        """Show the admission settings.

        Returns how admission orders jobs and whether it preempts. The response has an `ETag`."""
        principal(request)
        return tagged(request, AdmissionSettingsSerializer(services.settings()).data)

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


def node_data(row: usage.NodeUsage) -> dict[str, Any]:
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
    return {*tree} if sees_all(who) else usage.nodes_visible_to(tree, who.team_ids)


def _shown(request: Request) -> Response:
    who, version, tree = principal(request), selectors.version(), selectors.tree()
    seen = visible(who, tree)
    rows = [row for row in usage.usage_of_nodes(tree, selectors.used_of_nodes(tree)) if row.node.id in seen]
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
