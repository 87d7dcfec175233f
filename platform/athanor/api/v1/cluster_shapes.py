"""The shapes of clusters, their nodes and examinations on the wire."""

from datetime import timedelta
from typing import Any

from django.db.models import Sum
from django.utils import timezone
from rest_framework import serializers

from athanor.api.bodies import AmountField, RequestSerializer
from athanor.api.pagination import serialize_many
from athanor.api.v1.shapes import FieldProblemSerializer
from athanor.backends.facts import Level, NodeState
from athanor.clusters import selectors, services
from athanor.clusters.models import Cluster, ClusterProbe, Node, NodeIncident, Pool, Survey
from athanor.core import tenancy
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import HOLDING
from athanor.operations import clusters

CURRENCY = r"^[A-Z]{3}$"
LARGEST = 2**31 - 1
LARGEST_BYTES = 2**62
LATELY = timedelta(hours=24)


class PoolSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    accelerator = serializers.CharField()
    nodes = serializers.IntegerField()
    slots_per_node = serializers.IntegerField()
    slots = serializers.IntegerField()
    slots_used = serializers.IntegerField(help_text="held by jobs of this platform")
    memory_bytes = serializers.IntegerField(help_text="of one node")
    price_per_slot_hour = serializers.FloatField()
    currency = serializers.CharField()


class PoolChangeSerializer(RequestSerializer):
    accelerator = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9:._/-]*$", max_length=40, required=False)
    nodes = serializers.IntegerField(required=False, min_value=0, max_value=LARGEST)
    slots_per_node = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST)
    memory_bytes = serializers.IntegerField(required=False, min_value=1, max_value=LARGEST_BYTES)
    price_per_slot_hour = AmountField(required=False, max_digits=12, decimal_places=4)
    currency = serializers.RegexField(CURRENCY, required=False, max_length=3)


class CapacitySerializer(serializers.Serializer[selectors.Capacity]):
    accelerator = serializers.CharField(allow_blank=True)
    nodes = serializers.IntegerField()
    slots = serializers.IntegerField()
    slots_used = serializers.IntegerField(help_text="by whomever")
    usable_slots = serializers.IntegerField(help_text="of nodes that are ready and not in quarantine")


class NodeCountsSerializer(serializers.Serializer[Any]):
    total = serializers.IntegerField()
    ready = serializers.IntegerField()
    drained = serializers.IntegerField()
    down = serializers.IntegerField()
    unknown = serializers.IntegerField()
    quarantined = serializers.IntegerField(help_text="of them, whatever their state")


class ClusterSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.CharField()
    enabled = serializers.BooleanField(help_text="whether anything new is admitted")
    usable = serializers.BooleanField(allow_null=True, help_text="by its last examination; null where there is none")
    pools = PoolSerializer(many=True)
    nodes = NodeCountsSerializer(help_text="those that its last inventory listed")
    capacity = CapacitySerializer(many=True, help_text="of those nodes, by accelerator")


class FindingSerializer(serializers.Serializer[Any]):
    check = serializers.CharField()
    level = serializers.ChoiceField(choices=[level.value for level in Level])
    detail = serializers.CharField(allow_blank=True)
    remedy = serializers.CharField(allow_blank=True)


class ProbeSerializer(serializers.Serializer[ClusterProbe]):
    id = serializers.CharField()
    began_at = serializers.DateTimeField(help_text="since when it is so")
    seen_at = serializers.DateTimeField(help_text="when it was last found to be so")
    usable = serializers.BooleanField()
    version = serializers.CharField(allow_blank=True)
    facts = serializers.JSONField()
    findings = FindingSerializer(many=True)


class CheckSerializer(serializers.Serializer[Any]):
    usable = serializers.BooleanField(allow_null=True, help_text="null where such a cluster cannot be examined")
    version = serializers.CharField(allow_blank=True)
    facts = serializers.JSONField()
    findings = FindingSerializer(many=True)


class ProposalSerializer(serializers.Serializer[selectors.Proposal]):
    name = serializers.CharField()
    accelerator = serializers.CharField()
    nodes = serializers.IntegerField()
    slots_per_node = serializers.IntegerField()
    memory_bytes = serializers.IntegerField()


class SetupSerializer(serializers.Serializer[Any]):
    """What those see who operate the platform."""

    config = serializers.JSONField()
    config_problems = FieldProblemSerializer(many=True, help_text="where it no longer fits its kind")
    capabilities = serializers.ListField(child=serializers.CharField(), help_text="probe, nodes, drain, sync_teams")
    probe = ProbeSerializer(allow_null=True)
    nodes_at = serializers.DateTimeField(allow_null=True, help_text="when its nodes were last asked for")
    nodes_problem = serializers.CharField(allow_blank=True, help_text="why they could not be listed then")
    suspects = serializers.ListField(
        child=serializers.CharField(), help_text="nodes that hit several jobs lately: look whether to quarantine them"
    )
    proposed_pools = ProposalSerializer(many=True, help_text="by its nodes")


class FullClusterSerializer(ClusterSerializer):
    created_at = serializers.DateTimeField()
    observed_at = serializers.DateTimeField(allow_null=True, help_text="when its jobs were last asked for")
    setup = SetupSerializer(allow_null=True)


class NewClusterSerializer(RequestSerializer):
    name = serializers.RegexField(r"^[a-z0-9][a-z0-9-]*$", max_length=63)
    kind = serializers.CharField(max_length=20)
    config = serializers.DictField(required=False, default=dict)
    enabled = serializers.BooleanField(required=False, default=True)


class ClusterChangeSerializer(RequestSerializer):
    config = serializers.DictField(required=False, help_text="the whole of it, in place of what was")
    enabled = serializers.BooleanField(required=False)


class ConfigSerializer(RequestSerializer):
    name = serializers.RegexField(
        r"^[a-z0-9][a-z0-9-]*$", max_length=63, required=False, help_text="of the cluster that it is, or will be, of"
    )
    kind = serializers.CharField(max_length=20)
    config = serializers.DictField(required=False, default=dict)


class KindSerializer(serializers.Serializer[Any]):
    kind = serializers.CharField()
    title = serializers.CharField()
    configuration = serializers.JSONField(help_text="JSON Schema")


class IncidentSerializer(serializers.Serializer[NodeIncident]):
    id = serializers.CharField()
    kind = serializers.CharField()
    time = serializers.DateTimeField()
    detail = serializers.CharField(allow_blank=True)
    actor = serializers.CharField(allow_blank=True)
    job_id = serializers.CharField(allow_blank=True)
    attempt_id = serializers.CharField(allow_blank=True)


class NodeSerializer(serializers.Serializer[Node]):
    name = serializers.CharField()
    state = serializers.ChoiceField(choices=[state.value for state in NodeState])
    reason = serializers.CharField(allow_blank=True)
    listed = serializers.BooleanField(help_text="whether the last inventory named it")
    pools = serializers.ListField(child=serializers.CharField(), help_text="as its cluster groups it")
    accelerator = serializers.CharField(allow_blank=True)
    slots = serializers.IntegerField()
    slots_used = serializers.IntegerField()
    cpus = serializers.IntegerField()
    memory_bytes = serializers.IntegerField()
    topology = serializers.ListField(child=serializers.CharField(), help_text="the switches above it, outermost first")
    labels = serializers.DictField(child=serializers.CharField(allow_blank=True))
    seen_at = serializers.DateTimeField(allow_null=True)
    quarantined_at = serializers.DateTimeField(allow_null=True)
    quarantined_by = serializers.CharField(allow_blank=True)
    quarantine_reason = serializers.CharField(allow_blank=True)
    recent_jobs_hit = serializers.SerializerMethodField(help_text="in the last 24 hours")

    def get_recent_jobs_hit(self, node: Node) -> int:
        found: int = self.context["hit"].get(node.pk, 0)
        return found


class ActedNodeSerializer(NodeSerializer):
    notice = serializers.SerializerMethodField(help_text="why its cluster did not follow, where it did not")

    def get_notice(self, node: Node) -> str:
        return str(self.context["notice"])


class NodeReasonSerializer(RequestSerializer):
    reason = serializers.CharField(max_length=500)


class QueuedSerializer(serializers.Serializer[Attempt]):
    """Of other teams' jobs only ids are shown."""

    attempt_id = serializers.CharField(source="id")
    job_id = serializers.CharField()
    number = serializers.IntegerField()
    backend_name = serializers.CharField()
    backend_id = serializers.CharField(allow_blank=True)
    status = serializers.CharField()
    phase = serializers.CharField(allow_blank=True)
    native_state = serializers.CharField(allow_blank=True)
    native_reason = serializers.CharField(allow_blank=True)
    explanation = serializers.CharField(allow_blank=True)
    nodes = serializers.ListField(child=serializers.CharField(), source="native_nodes")
    expected_start_at = serializers.DateTimeField(allow_null=True)
    submitted_at = serializers.DateTimeField(allow_null=True)


class ChangesSerializer(serializers.Serializer[Any]):
    changes = serializers.ListField(child=serializers.CharField(), help_text="a line each; none when all was so")


def pool_data(pools: list[Pool]) -> list[Any]:
    with tenancy.unrestricted():  # sums over all teams, which tell of none
        held = Job.objects.filter(pool__in=pools, status__in=[status.value for status in HOLDING]).values("pool_id")
        used = {row["pool_id"]: row["slots"] for row in held.annotate(slots=Sum("slots")).order_by()}
    for pool in pools:
        pool.slots_used = used.get(pool.id, 0)  # type: ignore[attr-defined] # for its serializer
    found: list[Any] = serialize_many(PoolSerializer, pools)
    return found


def cluster_data(row: Cluster) -> dict[str, Any]:
    """What everybody sees: a ClusterSerializer's."""
    groups = selectors.node_groups(row)
    counts = {state.value: sum(group.nodes for group in groups if group.state == state.value) for state in NodeState}
    probe = services.latest_probe(row)
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "enabled": row.enabled,
        "usable": probe.usable if probe else None,
        "pools": pool_data(sorted(row.pools.all(), key=lambda pool: pool.name)),
        "nodes": {
            "total": sum(group.nodes for group in groups),
            **counts,
            "quarantined": sum(group.quarantined for group in groups),
        },
        "capacity": serialize_many(CapacitySerializer, selectors.capacity(groups)),
    }


def full_cluster_data(row: Cluster, *, operates: bool) -> dict[str, Any]:
    shown = FullClusterSerializer(
        {
            **cluster_data(row),
            "created_at": row.created_at,
            "observed_at": row.observed_at,
            "setup": _setup(row) if operates else None,
        }
    ).data
    return dict(shown)


def recent_hits(cluster: Cluster) -> dict[int, int]:
    """How many jobs each node hit lately."""
    rows = NodeIncident.objects.filter(node__cluster=cluster, time__gte=timezone.now() - LATELY).exclude(job_id="")
    jobs: dict[int, set[str]] = {}
    for node, job in rows.values_list("node_id", "job_id"):
        jobs.setdefault(node, set()).add(job)
    return {node: len(found) for node, found in jobs.items()}


def _setup(row: Cluster) -> dict[str, Any]:
    survey = Survey.objects.filter(cluster=row).first()
    nodes = list(Node.objects.filter(cluster=row, listed=True))
    return {
        "config": row.config,
        "config_problems": [vars(problem) for problem in clusters.config_problems(row)],
        "capabilities": clusters.capabilities(row),
        "probe": services.latest_probe(row),
        "nodes_at": survey.nodes_at if survey else None,
        "nodes_problem": survey.problem if survey else "",
        "suspects": list(selectors.suspects(row)),
        "proposed_pools": selectors.proposals(row, nodes),
    }
