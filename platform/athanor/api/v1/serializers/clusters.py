"""Serializers of clusters, their pools, nodes and health checks."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from athanor.api.bodies import AmountField, RequestSerializer
from athanor.api.pagination import serialize_many
from athanor.api.v1.serializers.common import FieldProblemSerializer
from athanor.backends.facts import Level, NodeState
from athanor.backends.runbooks import runbook_of_check
from athanor.clusters import selectors, services
from athanor.clusters.models import Cluster, ClusterHealthCheck, Node, NodeIncident, Pool
from athanor.clusters.node_score import NodeScore, Standing
from athanor.fleet import clusters
from athanor.jobs.models import Attempt
from athanor.jobs.selectors import slots_held

CURRENCY = r"^[A-Z]{3}$"
MAX_INT32 = 2**31 - 1
MAX_BYTES = 2**62


class PoolSerializer(serializers.Serializer[Any]):
    """Equal slots of a cluster."""

    name = serializers.CharField(help_text="Name within the cluster.")
    accelerator = serializers.CharField(help_text="Accelerator of its nodes, or `cpu`.")
    nodes = serializers.IntegerField(help_text="Number of nodes, spare ones included.")
    spare_nodes = serializers.IntegerField(
        help_text="Number of its nodes that stay free of admitted jobs, so that a run that loses a node finds another."
    )
    slots_per_node = serializers.IntegerField(
        help_text="Slots per node. A slot runs one process: one accelerator, or one CPU core."
    )
    slots = serializers.IntegerField(help_text="Slots of all its nodes, spare ones included.")
    slots_used = serializers.IntegerField(help_text="Slots that jobs of this platform hold.")
    memory_bytes = serializers.IntegerField(help_text="Host memory of one node in bytes, shared by its processes.")
    accelerator_memory_bytes = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Memory of one accelerator in bytes. Null if it is not configured: jobs are not checked against it then."
        ),
    )
    price_per_slot_hour = serializers.FloatField(help_text="Price per slot-hour, in `currency`.")
    currency = serializers.CharField(help_text="Currency, ISO 4217.")


class PoolChangeSerializer(RequestSerializer):
    """A pool to create, or changes of one."""

    accelerator = serializers.RegexField(
        r"^[A-Za-z0-9][A-Za-z0-9:._/-]*$",
        max_length=40,
        required=False,
        help_text="Accelerator of its nodes, or `cpu`. A new pool without it has `cpu`.",
    )
    nodes = serializers.IntegerField(
        required=False, min_value=0, max_value=MAX_INT32, help_text="Number of nodes. A new pool without it has 1."
    )
    spare_nodes = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=MAX_INT32,
        help_text=(
            "Number of its nodes that stay free of admitted jobs, so that a run that loses a node finds another. Less "
            "than `nodes`. A new pool without it has 0. Running jobs are not stopped for it."
        ),
    )
    slots_per_node = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_INT32,
        help_text=("Slots per node. A slot runs one process: one accelerator, or one CPU core. A new pool needs it."),
    )
    memory_bytes = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=MAX_BYTES,
        help_text="Host memory of one node in bytes, shared by its processes. A new pool needs it.",
    )
    accelerator_memory_bytes = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=MAX_BYTES,
        help_text="Memory of one accelerator in bytes. Without it jobs are not checked against it.",
    )
    price_per_slot_hour = AmountField(
        required=False,
        max_digits=12,
        decimal_places=4,
        help_text="Price per slot-hour, in `currency`. A new pool without it has 0.",
    )
    currency = serializers.RegexField(
        CURRENCY, required=False, max_length=3, help_text="Currency, ISO 4217. A new pool without it has USD."
    )


class CapacitySerializer(serializers.Serializer[selectors.Capacity]):
    """Nodes and slots of one accelerator."""

    accelerator = serializers.CharField(
        allow_blank=True, help_text="Accelerator of the nodes. Empty if the cluster reports none."
    )
    nodes = serializers.IntegerField(help_text="Number of nodes.")
    slots = serializers.IntegerField(help_text="Slots of these nodes.")
    slots_used = serializers.IntegerField(help_text="Slots in use by anyone, as the cluster reports.")
    usable_slots = serializers.IntegerField(help_text="Slots of nodes that are ready and not in quarantine.")


class NodeCountsSerializer(serializers.Serializer[Any]):
    """Number of nodes by state."""

    total = serializers.IntegerField(help_text="Number of nodes.")
    ready = serializers.IntegerField(help_text="Number of nodes that accept work.")
    drained = serializers.IntegerField(help_text="Number of nodes that somebody has drained.")
    down = serializers.IntegerField(help_text="Number of nodes that are down.")
    unknown = serializers.IntegerField(help_text="Number of nodes whose state is not known.")
    quarantined = serializers.IntegerField(help_text="Number of nodes in quarantine, whatever their state.")


class ClusterSerializer(serializers.Serializer[Any]):
    """A cluster as everyone sees it."""

    id = serializers.CharField()
    name = serializers.CharField(help_text="Name, unique on the platform. Specs name the cluster by it.")
    kind = serializers.CharField(help_text="Kind of cluster, such as `slurm` or `kubernetes`.")
    enabled = serializers.BooleanField(help_text="Whether new jobs are admitted.")
    usable = serializers.BooleanField(
        allow_null=True, help_text="Whether jobs can run, by its last health check. Null before the first."
    )
    pools = PoolSerializer(many=True, help_text="Its pools, by name.")
    nodes = NodeCountsSerializer(help_text="Number of nodes in its last inventory, by state.")
    capacity = CapacitySerializer(many=True, help_text="Capacity of those nodes, by accelerator.")


class FindingSerializer(serializers.Serializer[Any]):
    """One finding of a health check."""

    check = serializers.CharField(help_text="What was checked.")
    level = serializers.ChoiceField(
        choices=[level.value for level in Level],
        help_text="`ok`; `warning` if jobs run with restrictions; `error` if jobs cannot run.",
    )
    detail = serializers.CharField(allow_blank=True, help_text="What was found.")
    remedy = serializers.CharField(allow_blank=True, help_text="What to do about a warning or an error. May be empty.")
    runbook = serializers.SerializerMethodField(
        help_text="Path of the page about this check, on this server. Empty where `level` is `ok`, or without a page."
    )

    def get_runbook(self, finding: Any) -> str:
        """Return the path of the runbook of a warning or an error."""
        found = finding if isinstance(finding, dict) else vars(finding)
        return "" if found["level"] == Level.OK else runbook_of_check(found["check"])


class ProbeSerializer(serializers.Serializer[ClusterHealthCheck]):
    """The result of a health check of a cluster, for as long as it stayed the same."""

    id = serializers.CharField()
    began_at = serializers.DateTimeField(help_text="Time of the first check with this result, ISO 8601 in UTC.")
    seen_at = serializers.DateTimeField(help_text="Time of the last check with this result, ISO 8601 in UTC.")
    usable = serializers.BooleanField(help_text="Whether jobs can run: no finding is an error.")
    version = serializers.CharField(allow_blank=True, help_text="Version that the cluster reports. May be empty.")
    facts = serializers.JSONField(
        help_text="What the backend learned about the cluster, as a JSON object that depends on its kind."
    )
    findings = FindingSerializer(many=True, help_text="What was checked and found.")


class CheckSerializer(serializers.Serializer[Any]):
    """The result of checking a configuration."""

    usable = serializers.BooleanField(
        allow_null=True,
        help_text=("Whether jobs can run: no finding is an error. Null for a kind of cluster without health checks."),
    )
    version = serializers.CharField(allow_blank=True, help_text="Version that the cluster reports. May be empty.")
    facts = serializers.JSONField(
        help_text="What the backend learned about the cluster, as a JSON object that depends on its kind."
    )
    findings = FindingSerializer(many=True, help_text="What was checked and found.")


class ProposalSerializer(serializers.Serializer[selectors.Proposal]):
    """A pool that a cluster's nodes suggest."""

    name = serializers.CharField(help_text="Proposed name.")
    accelerator = serializers.CharField(help_text="Accelerator of the nodes.")
    nodes = serializers.IntegerField(help_text="Number of nodes.")
    slots_per_node = serializers.IntegerField(help_text="Fewest slots of one of the nodes.")
    memory_bytes = serializers.IntegerField(help_text="Smallest host memory of one of the nodes, in bytes.")
    accelerator_memory_bytes = serializers.IntegerField(
        allow_null=True,
        help_text="Smallest memory of one of their accelerators, in bytes. Null unless every node reports it.",
    )


class SetupSerializer(serializers.Serializer[Any]):
    """How a cluster is set up, for platform administrators."""

    config = serializers.JSONField(help_text="Configuration, as the schema of its kind describes.")
    config_problems = FieldProblemSerializer(
        many=True, help_text="Where the stored configuration no longer fits its kind, as after an upgrade."
    )
    capabilities = serializers.ListField(
        child=serializers.CharField(),
        help_text="What its backend can do besides running jobs: `probe`, `nodes`, `drain`, `sync_teams`.",
    )
    preflight_after_incidents = serializers.BooleanField(
        help_text="Whether free nodes are measured after an incident that a preflight can confirm."
    )
    preflight_every_hours = serializers.IntegerField(
        allow_null=True, help_text="Hours after which a free node is measured again. Null for never."
    )
    probe = ProbeSerializer(allow_null=True, help_text="Its last health check. Null before the first.")
    nodes_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the last inventory of its nodes, ISO 8601 in UTC. Null before the first."
    )
    nodes_problem = serializers.CharField(
        allow_blank=True, help_text="Why the last inventory failed. Empty if it did not."
    )
    suspects = serializers.ListField(
        child=serializers.CharField(),
        help_text=(
            "Names of nodes whose incidents affected at least three jobs within 24 hours: consider a quarantine."
        ),
    )
    proposed_pools = ProposalSerializer(many=True, help_text="Pools that its nodes suggest and that do not exist.")


class FullClusterSerializer(ClusterSerializer):
    """A cluster with its setup."""

    created_at = serializers.DateTimeField()
    observed_at = serializers.DateTimeField(
        allow_null=True,
        help_text="Time of the last complete sweep over its attempts, ISO 8601 in UTC. Null before the first.",
    )
    setup = SetupSerializer(
        allow_null=True, help_text="How it is set up. Null for callers who are not platform administrators."
    )


class NewClusterSerializer(RequestSerializer):
    """A cluster to register."""

    name = serializers.RegexField(
        r"^[a-z0-9][a-z0-9-]*$",
        max_length=63,
        help_text="Name, unique on the platform: lower-case letters, digits and `-`.",
    )
    kind = serializers.CharField(max_length=20, help_text="Kind of cluster, one of `GET /clusters:kinds`.")
    config = serializers.DictField(
        required=False, default=dict, help_text="Configuration, as the schema of its kind describes."
    )
    enabled = serializers.BooleanField(required=False, default=True, help_text="Whether new jobs are admitted.")


class ClusterChangeSerializer(RequestSerializer):
    """Changes of a cluster."""

    config = serializers.DictField(
        required=False, help_text="The complete new configuration, which replaces the present one."
    )
    enabled = serializers.BooleanField(required=False, help_text="Whether new jobs are admitted.")
    preflight_after_incidents = serializers.BooleanField(
        required=False, help_text="Whether free nodes are measured after an incident that a preflight can confirm."
    )
    preflight_every_hours = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=8760,
        help_text="Hours after which a free node is measured again. Null for never.",
    )  # fmt: skip


class ConfigSerializer(RequestSerializer):
    """A cluster configuration to check."""

    name = serializers.RegexField(
        r"^[a-z0-9][a-z0-9-]*$",
        max_length=63,
        required=False,
        help_text="Name of the cluster that the configuration is for, registered or not.",
    )
    kind = serializers.CharField(max_length=20, help_text="Kind of cluster, one of `GET /clusters:kinds`.")
    config = serializers.DictField(
        required=False, default=dict, help_text="Configuration, as the schema of its kind describes."
    )


class KindSerializer(serializers.Serializer[Any]):
    """A kind of cluster."""

    kind = serializers.CharField(help_text="Name of the kind.")
    title = serializers.CharField(help_text="Title for people.")
    configuration = serializers.JSONField(help_text="JSON Schema of its configuration.")


class IncidentSerializer(serializers.Serializer[NodeIncident]):
    """Something that happened to a node."""

    id = serializers.CharField()
    kind = serializers.CharField(
        help_text=(
            "The reason for which an attempt ended there, what was done to the node (such as "
            "`quarantined`) or what was seen of it (`down`, `ready`, `preflight_passed`)."
        )
    )
    time = serializers.DateTimeField(help_text="Time of the incident, ISO 8601 in UTC.")
    detail = serializers.CharField(allow_blank=True, help_text="What happened, in words. May be empty.")
    actor = serializers.CharField(allow_blank=True, help_text="Username of the person who did it. Empty if nobody did.")
    job_id = serializers.CharField(allow_blank=True, help_text="Id of the job that was affected. Empty if none was.")
    attempt_id = serializers.CharField(
        allow_blank=True, help_text="Id of the attempt that was affected. Empty if none was."
    )


class NodeScoreReasonSerializer(serializers.Serializer[Any]):
    """Incidents of one kind that count against a node."""

    kind = serializers.CharField(help_text="Kind of the incidents, such as `gpu_fault` or `preflight_slow`.")
    jobs = serializers.IntegerField(help_text="Number of jobs that they affected.")
    newest = serializers.DateTimeField(help_text="Time of the newest one, ISO 8601 in UTC.")
    score = serializers.FloatField(help_text="What they add to the score now.")


class NodeScoreSerializer(serializers.Serializer[Any]):
    """How far a node's past speaks against it."""

    value = serializers.FloatField(help_text="Sum over its incidents, each of which halves within 7 days.")
    standing = serializers.ChoiceField(
        choices=[standing.value for standing in Standing],
        help_text="`avoided` from a score of 1: new attempts run elsewhere, as long as their pool has enough other "
        "nodes. `probation` from 0.5. Else `good`.",
    )
    reasons = NodeScoreReasonSerializer(many=True, help_text="What the score is made of, the gravest first.")


class NodeSerializer(serializers.Serializer[Node]):
    """A machine of a cluster."""

    name = serializers.CharField(help_text="Name within the cluster.")
    state = serializers.ChoiceField(
        choices=[state.value for state in NodeState],
        help_text="`ready`, `drained` (takes no new work because somebody decided so), `down` or `unknown`.",
    )
    reason = serializers.CharField(
        allow_blank=True, help_text="Reason for the state, as the cluster reports it. May be empty."
    )
    listed = serializers.BooleanField(help_text="Whether the last inventory listed it.")
    pools = serializers.ListField(
        child=serializers.CharField(), help_text="Names by which its cluster groups it, such as partitions."
    )
    accelerator = serializers.CharField(
        allow_blank=True, help_text="Its accelerator, as the cluster reports it. May be empty."
    )
    slots = serializers.IntegerField(help_text="Number of its slots: accelerators, or processor cores if it has none.")
    slots_used = serializers.IntegerField(help_text="Number of slots in use by anyone, as the cluster reports.")
    cpus = serializers.IntegerField(help_text="Number of its CPUs, as the cluster reports.")
    memory_bytes = serializers.IntegerField(help_text="Its host memory in bytes.")
    accelerator_memory_bytes = serializers.IntegerField(
        help_text="Memory of one of its accelerators in bytes. 0 if the cluster does not report it."
    )
    topology = serializers.ListField(
        child=serializers.CharField(), help_text="Names of the switches above it, outermost first."
    )
    labels = serializers.DictField(
        child=serializers.CharField(allow_blank=True), help_text="Labels of the cluster, by name."
    )
    seen_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the last inventory that listed it, ISO 8601 in UTC. Null if none did."
    )
    quarantined_at = serializers.DateTimeField(
        allow_null=True, help_text="Time since which it is in quarantine, ISO 8601 in UTC. Null if it is not."
    )
    quarantined_by = serializers.CharField(
        allow_blank=True, help_text="Username of the person who quarantined it. Empty if it is not in quarantine."
    )
    quarantine_reason = serializers.CharField(
        allow_blank=True, help_text="Reason for the quarantine. Empty if it is not in quarantine."
    )
    recent_jobs_hit = serializers.SerializerMethodField(
        help_text="Number of jobs that an incident affected within the last 24 hours."
    )

    score = serializers.SerializerMethodField(help_text="Score of its incidents, which decides about new attempts.")

    @extend_schema_field(NodeScoreSerializer)
    def get_score(self, node: Node) -> Any:
        """Return the score of the node."""
        return NodeScoreSerializer(self.context["scores"].get(node.name, NodeScore())).data

    def get_recent_jobs_hit(self, node: Node) -> int:
        """Return the number of jobs with a recent incident on the node."""
        found: int = self.context["hit"].get(node.pk, 0)
        return found


class ActedNodeSerializer(NodeSerializer):
    """A node after an action on it."""

    notice = serializers.SerializerMethodField(
        help_text="Why the cluster did not follow. Empty if it did, or was not asked."
    )

    def get_notice(self, node: Node) -> str:
        """Return why the cluster did not follow, empty if it did or was not asked."""
        return str(self.context["notice"])


class NodeReasonSerializer(RequestSerializer):
    """Why a node is drained or quarantined."""

    reason = serializers.CharField(max_length=500, help_text="Reason, for others to read.")


class QueuedSerializer(serializers.Serializer[Attempt]):
    """An attempt that has not ended on a cluster. Of other teams' jobs only ids are shown."""

    attempt_id = serializers.CharField(source="id", help_text="Id of the attempt.")
    job_id = serializers.CharField(help_text="Id of the job.")
    number = serializers.IntegerField(help_text="Number of the attempt within the job.")
    backend_name = serializers.CharField(help_text="Name of the attempt on the cluster. It is unique.")
    backend_id = serializers.CharField(
        allow_blank=True, help_text="Id that the cluster gave it. Empty until it is known."
    )
    status = serializers.CharField(help_text="Status of the attempt: `prepared`, `submitted` or `running`.")
    phase = serializers.CharField(
        allow_blank=True,
        help_text=("Phase on the cluster: `pending`, `starting`, `running` or `ending`. Empty if it is not known."),
    )
    native_state = serializers.CharField(allow_blank=True, help_text="State in the cluster's own terms. May be empty.")
    native_reason = serializers.CharField(
        allow_blank=True, help_text="Reason in the cluster's own terms. May be empty."
    )
    explanation = serializers.CharField(
        allow_blank=True, help_text="What the state means, as a sentence. May be empty."
    )
    nodes = serializers.ListField(
        child=serializers.CharField(), source="native_nodes", help_text="Names of the nodes that it runs on."
    )
    expected_start_at = serializers.DateTimeField(
        allow_null=True, help_text="The cluster's own estimate of the start, ISO 8601 in UTC. Null if it gives none."
    )
    submitted_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was submitted to the cluster, ISO 8601 in UTC. Null before."
    )


class ChangesSerializer(serializers.Serializer[Any]):
    """What was changed on a cluster."""

    changes = serializers.ListField(
        child=serializers.CharField(), help_text="What was changed, a line each. Empty if nothing was."
    )


def serialize_pools(pools: list[Pool]) -> list[Any]:
    """Return pools as PoolSerializer represents them, with the slots that jobs of all teams hold."""
    used = slots_held(pools)
    for pool in pools:
        pool.slots_used = used.get(pool.id, 0)  # type: ignore[attr-defined] # for its serializer
    found: list[Any] = serialize_many(PoolSerializer, pools)
    return found


def serialize_cluster(row: Cluster) -> dict[str, Any]:
    """Return a cluster as ClusterSerializer represents it, which every user may see."""
    groups = selectors.node_groups(row)
    counts = {state.value: sum(group.nodes for group in groups if group.state == state.value) for state in NodeState}
    probe = services.latest_health_check(row)
    return {
        "id": row.id,
        "name": row.name,
        "kind": row.kind,
        "enabled": row.enabled,
        "usable": probe.usable if probe else None,
        "pools": serialize_pools(selectors.pools_of(row)),
        "nodes": {
            "total": sum(group.nodes for group in groups),
            **counts,
            "quarantined": sum(group.quarantined for group in groups),
        },
        "capacity": serialize_many(CapacitySerializer, selectors.capacity(groups)),
    }


def serialize_full_cluster(row: Cluster, *, operates: bool) -> dict[str, Any]:
    """Return a cluster as FullClusterSerializer represents it, with its setup for an operator."""
    shown = FullClusterSerializer(
        {
            **serialize_cluster(row),
            "created_at": row.created_at,
            "observed_at": row.observed_at,
            "setup": _setup(row) if operates else None,
        }
    ).data
    return dict(shown)


def _setup(row: Cluster) -> dict[str, Any]:
    sync = selectors.inventory_sync_of(row)
    return {
        "config": row.config,
        "config_problems": [vars(problem) for problem in clusters.config_problems(row)],
        "capabilities": clusters.capabilities(row),
        "preflight_after_incidents": row.preflight_after_incidents,
        "preflight_every_hours": row.preflight_every_hours,
        "probe": services.latest_health_check(row),
        "nodes_at": sync.nodes_at if sync else None,
        "nodes_problem": sync.problem if sync else "",
        "suspects": list(selectors.suspects(row)),
        "proposed_pools": selectors.proposals(row, selectors.listed_nodes(row)),
    }
