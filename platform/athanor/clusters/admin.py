from django.contrib import admin

from athanor.clusters.models import Cluster, Pool


class PoolInline(admin.TabularInline):
    model = Pool
    extra = 0


@admin.register(Cluster)
class ClusterAdmin(admin.ModelAdmin):
    list_display = ("name", "kind", "enabled")
    inlines = (PoolInline,)
