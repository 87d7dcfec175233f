"""/clusters: clusters and their capacity, for all users; their setup and operation, for platform administrators."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import get_principal
from athanor.api.bodies import parse_body
from athanor.api.etags import IF_MATCH, compute_etag, if_match_check
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import CURSOR_HELP, PAGE_PARAMETERS, paginate, paginated_response, serialize_many
from athanor.api.parameters import IntegerParameter
from athanor.api.v1.operations import operator
from athanor.api.v1.serializers.clusters import (
    ActedNodeSerializer,
    ChangesSerializer,
    CheckSerializer,
    ClusterChangeSerializer,
    ClusterSerializer,
    ConfigSerializer,
    FullClusterSerializer,
    IncidentSerializer,
    KindSerializer,
    NewClusterSerializer,
    NodeReasonSerializer,
    NodeSerializer,
    PoolChangeSerializer,
    PoolSerializer,
    ProbeSerializer,
    QueuedSerializer,
    serialize_cluster,
    serialize_full_cluster,
    serialize_pools,
)
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.preflight import NodePreflightSerializer
from athanor.backends import registry
from athanor.clusters import selectors
from athanor.clusters.models import Cluster, Node
from athanor.clusters.server_config import schema_for_http
from athanor.core import tenancy
from athanor.core.errors import NotFound
from athanor.core.keyset import read_page
from athanor.fleet import clusters

MAX_NODES = 2000
MAX_INCIDENTS = 200
MAX_PREFLIGHTS = 50
MAX_QUEUED = 1000
TITLES = {"local": "This machine", "slurm": "Slurm", "kubernetes": "Kubernetes"}


class ClustersView(APIView):
    """Requests to `/clusters`."""

    @extend_schema(
        operation_id="clusters_list",
        responses={200: page_serializer("ClusterPage", ClusterSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List clusters.

        Returns clusters with their pools and the capacity of their nodes, by name. Disabled clusters are listed for
        platform administrators only."""
        rows = selectors.all_clusters() if operates(request) else selectors.enabled_clusters()
        return paginated_response([ClusterSerializer(serialize_cluster(row)).data for row in rows])

    @extend_schema(
        operation_id="clusters_create",
        parameters=IDEMPOTENT,
        request=NewClusterSerializer,
        responses={201: FullClusterSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Register a cluster.

        Registers a cluster without pools; `setup` proposes pools once its nodes are known. The configuration
        contains no secrets: it names files in the server's ATHANOR_CLUSTER_CONFIG_DIR, where commands are set too,
        in NAME.cluster.json. For platform administrators."""
        principal = operator(request)
        asked = parse_body(request, NewClusterSerializer)
        return run_idempotently(
            request, lambda: _cluster_response(request, clusters.register(**asked, actor=principal.user), status=201)
        )


class ClusterCheckView(APIView):
    """Requests to `/clusters:check`."""

    @extend_schema(
        operation_id="clusters_check",
        request=ConfigSerializer,
        responses={200: CheckSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Check a cluster configuration.

        Validates the configuration and runs a health check of the cluster that it describes. Nothing is stored
        except a record in the audit trail. With `name` the server's own settings for that cluster apply. Takes as
        long as the cluster needs to respond. For platform administrators."""
        principal = operator(request)
        found = clusters.check(**parse_body(request, ConfigSerializer), actor=principal.user)
        if found is None:
            return Response({"usable": None, "version": "", "facts": {}, "findings": []})
        return Response(
            CheckSerializer(
                {
                    "usable": found.is_usable,
                    "version": found.version,
                    "facts": dict(found.facts),
                    "findings": found.findings,
                }
            ).data
        )


class ClusterKindsView(APIView):
    """Requests to `/clusters:kinds`."""

    @extend_schema(
        operation_id="clusters_kinds",
        responses={200: page_serializer("ClusterKindPage", KindSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List the kinds of clusters.

        Returns the kinds that can be registered, with the JSON Schema of each kind's configuration. For platform
        administrators."""
        operator(request)
        return paginated_response(
            [
                {
                    "kind": kind,
                    "title": TITLES.get(kind, kind),
                    "configuration": schema_for_http(kind, registry.configuration(kind).model_json_schema()),
                }
                for kind in registry.KINDS
            ]
        )


class ClusterView(APIView):
    """Requests to `/clusters/{cluster_id}`."""

    @extend_schema(operation_id="clusters_show", responses={200: FullClusterSerializer, **PROBLEMS})
    def get(self, request: Request, cluster_id: str) -> Response:
        """Show a cluster.

        Returns the cluster with its pools and capacity; platform administrators also see its setup. The response has
        an `ETag`."""
        row = clusters.find(cluster_id)
        if not row.enabled and not operates(request):
            raise NotFound("cluster", cluster_id)
        return _cluster_response(request, row)

    @extend_schema(
        operation_id="clusters_change",
        parameters=[IF_MATCH],
        request=ClusterChangeSerializer,
        responses={200: FullClusterSerializer, **PROBLEMS},
    )
    def patch(self, request: Request, cluster_id: str) -> Response:
        """Change or disable a cluster.

        Changes the fields that are sent; the others stay. A disabled cluster is drained: running jobs continue, and
        no job is admitted. For platform administrators."""
        principal = operator(request)
        unchanged: Callable[[Cluster], None] = if_match_check(
            request, lambda row, tag: tag.startswith(_settings_tag(row))
        )
        clusters.change(cluster_id, principal.user, unchanged, **parse_body(request, ClusterChangeSerializer))
        return _cluster_response(request, clusters.find(cluster_id))

    @extend_schema(
        operation_id="clusters_remove",
        responses={204: None, **PROBLEMS},
    )
    def delete(self, request: Request, cluster_id: str) -> Response:
        """Remove a cluster.

        Removes a cluster that never had a job. Any other is refused with 409: disable it instead. For platform
        administrators."""
        clusters.remove(cluster_id, operator(request).user)
        return Response(status=204)


class ClusterHealthCheckView(APIView):
    """Requests to `/clusters/{cluster_id}:probe`."""

    @extend_schema(
        operation_id="clusters_probe",
        request=None,
        responses={200: ProbeSerializer, **PROBLEMS},
    )
    def post(self, request: Request, cluster_id: str) -> Response:
        """Run a health check of a cluster.

        Checks the cluster now and refreshes the inventory of its nodes. Takes as long as the cluster needs to
        respond. For platform administrators."""
        principal = operator(request)
        return Response(ProbeSerializer(clusters.check_health(cluster_id, principal.user)).data)


class ClusterHealthChecksView(APIView):
    """Requests to `/clusters/{cluster_id}/probes`."""

    @extend_schema(
        operation_id="clusters_probes",
        parameters=PAGE_PARAMETERS,
        responses={200: page_serializer("ClusterProbePage", ProbeSerializer), **PROBLEMS},
    )
    def get(self, request: Request, cluster_id: str) -> Response:
        """List the health checks of a cluster.

        Returns results, newest first. Consecutive checks with the same result are one entry. For platform
        administrators."""
        operator(request)
        found, next_cursor = paginate(request, selectors.health_checks_of(clusters.find(cluster_id)))
        return paginated_response(serialize_many(ProbeSerializer, found), next_cursor)


class ClusterTeamsView(APIView):
    """Requests to `/clusters/{cluster_id}:sync_teams`."""

    @extend_schema(
        operation_id="clusters_sync_teams",
        request=None,
        responses={200: ChangesSerializer, **PROBLEMS},
    )
    def post(self, request: Request, cluster_id: str) -> Response:
        """Create the teams on a cluster.

        Creates the cluster's counterpart of every team, such as an account or a namespace. Nothing is removed. For
        platform administrators."""
        principal = operator(request)
        return Response({"changes": clusters.sync_teams(cluster_id, principal.user)})


class ClusterQueueView(APIView):
    """Requests to `/clusters/{cluster_id}/queue`."""

    @extend_schema(
        operation_id="clusters_queue",
        responses={200: page_serializer("ClusterQueuePage", QueuedSerializer), **PROBLEMS},
    )
    def get(self, request: Request, cluster_id: str) -> Response:
        """List the attempts on a cluster.

        Returns the attempts of this platform that have not ended on the cluster, oldest first, at most 1000, with
        their state in the cluster's own terms. For platform administrators."""
        operator(request)
        row = clusters.find(cluster_id)
        with tenancy.unrestricted():
            found = serialize_many(QueuedSerializer, clusters.live_attempts(row)[:MAX_QUEUED])
        return paginated_response(found)


class PoolView(APIView):
    """Requests to `/clusters/{cluster_id}/pools/{pool_name}`."""

    @extend_schema(
        operation_id="pools_put",
        request=PoolChangeSerializer,
        responses={
            200: OpenApiResponse(PoolSerializer, description="The changed pool."),
            201: OpenApiResponse(PoolSerializer, description="The new pool."),
            **PROBLEMS,
        },
    )
    def put(self, request: Request, cluster_id: str, pool_name: str) -> Response:
        """Create or change a pool.

        Creates the pool (201), which needs `slots_per_node` and `memory_bytes`, or changes the fields that are sent
        of an existing one (200). For platform administrators."""
        principal = operator(request)
        pool, made = clusters.put_pool(cluster_id, pool_name, principal.user, parse_body(request, PoolChangeSerializer))
        return Response(serialize_pools([pool])[0], status=201 if made else 200)

    @extend_schema(operation_id="pools_remove", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, cluster_id: str, pool_name: str) -> Response:
        """Remove a pool.

        Removes a pool that never had a job. Any other is refused with 409: set its nodes to 0 instead. For platform
        administrators."""
        clusters.remove_pool(cluster_id, pool_name, operator(request).user)
        return Response(status=204)


NODE_LIMIT = IntegerParameter(
    "limit", "Maximum number of nodes per page.", min_value=1, max_value=MAX_NODES, default=500
)
STATES = ["ready", "drained", "down", "unknown", "quarantined"]


class NodesView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes`."""

    @extend_schema(
        operation_id="nodes_list",
        parameters=[
            OpenApiParameter("q", str, description="Only nodes with this in their name, ignoring case."),
            OpenApiParameter("state", str, enum=STATES, description="Only nodes in this state, or in quarantine."),
            NODE_LIMIT.openapi,
            OpenApiParameter("cursor", str, description=CURSOR_HELP),
        ],
        responses={200: page_serializer("NodePage", NodeSerializer), **PROBLEMS},
    )
    def get(self, request: Request, cluster_id: str) -> Response:
        """List the nodes of a cluster.

        Returns nodes by name, with their state and quarantine. For platform administrators."""
        operator(request)
        row = clusters.find(cluster_id)
        asked = request.query_params
        nodes = selectors.nodes_of(row, name_part=asked.get("q", ""), state=asked.get("state", ""))
        limit, cursor = NODE_LIMIT.read(request), asked.get("cursor")
        found, next_cursor = read_page(nodes, limit, cursor, key="name", descending=False)
        items = serialize_many(NodeSerializer, found, context=_node_context(row))
        return paginated_response(items, next_cursor)


class NodeIncidentsView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes/{node_name}/incidents`."""

    @extend_schema(
        operation_id="nodes_incidents",
        responses={200: page_serializer("IncidentPage", IncidentSerializer), **PROBLEMS},
    )
    def get(self, request: Request, cluster_id: str, node_name: str) -> Response:
        """List the incidents of a node.

        Returns what happened to the node within ATHANOR_HISTORY_DAYS (365), newest first, at most 200 entries. For
        platform administrators."""
        operator(request)
        node = selectors.node_of(clusters.find(cluster_id), node_name)
        rows = selectors.incidents_of(node, MAX_INCIDENTS)
        return paginated_response(serialize_many(IncidentSerializer, rows))


class NodePreflightsView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes/{node_name}/preflights`."""

    @extend_schema(
        operation_id="nodes_preflights",
        responses={200: page_serializer("NodePreflightPage", NodePreflightSerializer), **PROBLEMS},
    )
    def get(self, request: Request, cluster_id: str, node_name: str) -> Response:
        """List the preflights of a node.

        Returns the preflights that ran on the node outside jobs, newest first, at most 50. For platform
        administrators."""
        operator(request)
        node = selectors.node_of(clusters.find(cluster_id), node_name)
        rows = selectors.preflights_of(node, MAX_PREFLIGHTS)
        return paginated_response(serialize_many(NodePreflightSerializer, rows))


class NodePreflightView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes/{node_name}:preflight`."""

    @extend_schema(
        operation_id="nodes_preflight",
        parameters=IDEMPOTENT,
        request=None,
        responses={201: NodePreflightSerializer, **PROBLEMS},
    )
    def post(self, request: Request, cluster_id: str, node_name: str) -> Response:
        """Start a preflight of a node.

        Measures the devices, memory and disk of the node for about a minute; `preflights` lists the result. The node
        must be ready and free, and no job may wait for its pool; else it is refused with 409. It is stopped as soon as
        a job is submitted to the cluster. No team is charged. For platform administrators."""
        principal = operator(request)

        def start() -> Response:
            made = clusters.start_preflight(cluster_id, node_name, principal.user)
            shown: serializers.Serializer[Any] = NodePreflightSerializer(made)
            return Response(shown.data, status=201)

        return run_idempotently(request, start)


class NodeDrainView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes/{node_name}:drain`."""

    @extend_schema(
        operation_id="nodes_drain",
        request=NodeReasonSerializer,
        responses={200: ActedNodeSerializer, **PROBLEMS},
    )
    def post(self, request: Request, cluster_id: str, node_name: str) -> Response:
        """Drain a node.

        Asks the cluster to start nothing new on the node. What runs there continues. A cluster that cannot drain a
        node refuses with 409. For platform administrators."""
        principal = operator(request)
        reason = parse_body(request, NodeReasonSerializer)["reason"]
        return _node_response(clusters.set_drained(cluster_id, node_name, reason, principal.user, drained=True))


class NodeUndrainView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes/{node_name}:undrain`."""

    @extend_schema(operation_id="nodes_undrain", request=None, responses={200: ActedNodeSerializer, **PROBLEMS})
    def post(self, request: Request, cluster_id: str, node_name: str) -> Response:
        """Return a drained node to service.

        Asks the cluster to start work on the node again. A node in quarantine is refused with 409: release it
        instead. For platform administrators."""
        principal = operator(request)
        return _node_response(clusters.set_drained(cluster_id, node_name, "", principal.user, drained=False))


class NodeQuarantineView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes/{node_name}:quarantine`."""

    @extend_schema(
        operation_id="nodes_quarantine",
        request=NodeReasonSerializer,
        responses={200: ActedNodeSerializer, **PROBLEMS},
    )
    def post(self, request: Request, cluster_id: str, node_name: str) -> Response:
        """Quarantine a node.

        Keeps new attempts off the node until it is released, whatever state its cluster reports. The cluster is
        asked to drain the node too, if it can. What runs there continues. For platform administrators."""
        principal = operator(request)
        reason = parse_body(request, NodeReasonSerializer)["reason"]
        return _node_response(*clusters.quarantine(cluster_id, node_name, reason, principal.user))


class NodeReleaseView(APIView):
    """Requests to `/clusters/{cluster_id}/nodes/{node_name}:release`."""

    @extend_schema(
        operation_id="nodes_release",
        request=None,
        responses={200: ActedNodeSerializer, **PROBLEMS},
    )
    def post(self, request: Request, cluster_id: str, node_name: str) -> Response:
        """Release a node from quarantine, or clear its score.

        Ends the quarantine; incidents before it no longer count. A node that is avoided or on probation for its score
        can be released as well. A cluster that drained the node is asked to return it to service. For platform
        administrators."""
        principal = operator(request)
        return _node_response(*clusters.release(cluster_id, node_name, principal.user))


def operates(request: Request) -> bool:
    """Return whether the caller may operate clusters."""
    return Permission.OPERATE in get_principal(request).platform


def _cluster_response(request: Request, row: Cluster, *, status: int = 200) -> Response:
    data = serialize_full_cluster(row, operates=operates(request))
    headers = {"ETag": f"{_settings_tag(row)}{compute_etag(data)[3:]}"}
    return Response(data, status=status, headers=headers)


def _settings_tag(row: Cluster) -> str:
    """Return the part of an ETag that changes with the settings only, not with nodes and jobs: If-Match compares it."""
    preflights = [row.preflight_after_incidents, row.preflight_every_hours]
    text = json.dumps([row.enabled, row.config, preflights], sort_keys=True)
    return f'W/"{hashlib.sha256(text.encode()).hexdigest()[:16]}-'


def _node_context(cluster: Cluster) -> dict[str, Any]:
    return {"hit": selectors.recent_hits(cluster), "scores": selectors.scores_of(cluster)}


def _node_response(node: Node, notice: str = "") -> Response:
    context = {**_node_context(node.cluster), "notice": notice}
    shown: serializers.Serializer[Any] = ActedNodeSerializer(node, context=context)
    return Response(shown.data)
