from typing import ClassVar

from django.db import models

from athanor.core import ids
from athanor.core.leases import LeasedModel


class Cluster(LeasedModel):
    """A compute target. `kind` names a backend (backends/registry.py); `config` is that backend's own.

    Who holds the lease observes it; `observed_at` is when the last whole sweep of its attempts ended.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.cluster_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    kind = models.CharField(max_length=20)
    config = models.JSONField(default=dict, blank=True)
    enabled = models.BooleanField(default=True)
    observed_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Pool(models.Model):
    """Like slots of a cluster. A slot runs one trainer process: one accelerator, or one CPU core.

    `memory_bytes` is what all processes of one node share; the price is per slot and hour.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.pool_id, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pools")
    name = models.SlugField(max_length=63)
    accelerator = models.CharField(max_length=40, default="cpu")
    nodes = models.PositiveIntegerField(default=1)
    slots_per_node = models.PositiveIntegerField()
    memory_bytes = models.BigIntegerField()
    price_per_slot_hour = models.DecimalField(max_digits=12, decimal_places=4, default=0)
    currency = models.CharField(max_length=3, default="USD")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["cluster", "name"], name="pool_name_is_unique_in_its_cluster")
        ]

    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}"

    @property
    def slots(self) -> int:
        return self.nodes * self.slots_per_node
