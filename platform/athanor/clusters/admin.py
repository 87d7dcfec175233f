from typing import Any

from django.contrib import admin
from django.db.models import Count, Model, QuerySet
from django.http import HttpRequest

from athanor.clusters.models import Cluster, Pool


class PoolInline(admin.TabularInline):
    model = Pool
    extra = 0
    fields = ("name", "accelerator", "nodes", "slots_per_node", "memory_bytes", "price_per_slot_hour", "currency")


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):
    list_display = ("name", "kind", "enabled", "pools_count", "observed_at", "created_at")
    list_filter = ("kind", "enabled")
    search_fields = ("name", "=id")
    date_hierarchy = "created_at"
    readonly_fields = ("id", "observed_at", "created_at")
    fields = ("name", "id", "kind", "enabled", "config", "observed_at", "created_at")
    inlines = (PoolInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Cluster]:
        rows: QuerySet[Cluster] = super().get_queryset(request)
        return rows.annotate(count_of_pools=Count("pools"))

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # its jobs refer to it; switch it off

    @admin.display(description="pools", ordering="count_of_pools")
    def pools_count(self, cluster: Any) -> int:
        return int(cluster.count_of_pools)


@admin.register(Pool)
class PoolAdmin(admin.ModelAdmin):
    list_display = ("name", "cluster", "accelerator", "nodes", "slots_per_node", "slots", "price_per_slot_hour")
    list_filter = ("accelerator", ("cluster", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("cluster",)
    search_fields = ("name", "=id", "cluster__name", "accelerator")
    readonly_fields = ("id",)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
