"""Clusters, pools, nodes and health checks in Django's admin."""

from typing import Any

from django.contrib import admin
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest

from athanor.clusters.models import Cluster, ClusterHealthCheck, InventorySync, Node, NodeIncident, Pool


class PoolInline(admin.TabularInline):  # type: ignore[type-arg] # generic in the stubs only
    """The pools of a cluster."""

    model = Pool
    extra = 0
    fields = (
        "name",
        "accelerator",
        "nodes",
        "spare_nodes",
        "slots_per_node",
        "memory_bytes",
        "accelerator_memory_bytes",
        "price_per_slot_hour",
        "currency",
    )


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Clusters. They are registered and configured by the API and the dashboard, not here."""

    list_display = ("name", "kind", "enabled", "pools_count", "observed_at", "created_at")
    list_filter = ("kind", "enabled")
    search_fields = ("name", "=id")
    date_hierarchy = "created_at"
    # Registered and set up by the API and its pages, which check the configuration by its kind.
    readonly_fields = ("id", "name", "kind", "config", "observed_at", "created_at")
    fields = ("name", "id", "kind", "enabled", "config", "observed_at", "created_at")
    inlines = (PoolInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cluster]:
        """Return the clusters with their number of pools."""
        rows: QuerySet[Cluster] = super().get_queryset(request)
        return rows.annotate(count_of_pools=Count("pools"))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: the API validates the configuration by its kind."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: jobs refer to their cluster."""
        return False  # its jobs refer to it; switch it off

    @admin.display(description="pools", ordering="count_of_pools")
    def pools_count(self, cluster: Any) -> int:
        """Return the number of pools."""
        return int(cluster.count_of_pools)


@admin.register(Pool)
class PoolAdmin(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Pools."""

    list_display = (
        "name",
        "cluster",
        "accelerator",
        "nodes",
        "spare_nodes",
        "slots_per_node",
        "slots",
        "price_per_slot_hour",
    )
    list_filter = ("accelerator", ("cluster", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("cluster",)
    search_fields = ("name", "=id", "cluster__name", "accelerator")
    readonly_fields = ("id",)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: jobs refer to their pool."""
        return False


class Seen(admin.ModelAdmin):  # type: ignore[type-arg] # generic in the stubs only
    """Read-only page for rows that workers and the operations pages write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False."""
        return False


@admin.register(Node)
class NodeAdmin(Seen):
    """Nodes, read-only."""

    list_display = ("name", "cluster", "state", "accelerator", "slots_used", "slots", "quarantined_at", "seen_at")
    list_filter = ("state", "listed", "accelerator", ("cluster", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("cluster",)
    search_fields = ("name", "cluster__name")


@admin.register(NodeIncident)
class NodeIncidentAdmin(Seen):
    """Incidents of nodes, read-only."""

    list_display = ("time", "node", "kind", "detail", "actor", "job_id")
    list_filter = ("kind", ("node__cluster", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("node",)
    search_fields = ("node__name", "=job_id", "=attempt_id")
    date_hierarchy = "time"


@admin.register(ClusterHealthCheck)
class ClusterHealthCheckAdmin(Seen):
    """Health checks of clusters, read-only."""

    list_display = ("cluster", "usable", "version", "began_at", "seen_at")
    list_filter = ("usable", ("cluster", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("cluster",)
    search_fields = ("=id", "cluster__name")
    date_hierarchy = "began_at"


@admin.register(InventorySync)
class InventorySyncAdmin(Seen):
    """State of the inventory sync and health check of each cluster, read-only."""

    list_display = ("cluster", "nodes_at", "probed_at", "problem")
    list_select_related = ("cluster",)
    search_fields = ("cluster__name",)
