"""Records of the quota tree, its grants, its past nominal slots, and the admission settings."""

from typing import ClassVar

from django.db import models
from django.utils import timezone

from athanor.accounts.models import Team
from athanor.core import ids


class QuotaNode(models.Model):
    """The organisation (without parent; its row is the admission lock), a group, or a team's leaf.

    Limits apply to the subtree; None is no limit. `weight`: fair-share weight among its siblings.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.quota_node_id, editable=False)
    parent = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="children")
    team = models.OneToOneField(Team, null=True, on_delete=models.CASCADE, related_name="quota_node")
    name = models.CharField(max_length=100)
    weight = models.FloatField(default=1.0)
    max_running_jobs = models.PositiveIntegerField(null=True)
    max_queued_jobs = models.PositiveIntegerField(null=True)
    max_slots = models.PositiveIntegerField(null=True)
    max_slots_per_job = models.PositiveIntegerField(null=True)
    max_run_seconds = models.PositiveIntegerField(null=True)
    max_storage_bytes = models.BigIntegerField(null=True)
    idle_warning_seconds = models.PositiveIntegerField(null=True)
    idle_pause_seconds = models.PositiveIntegerField(null=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["parent", "name"], name="quota_node_name_is_unique_below_its_parent", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=models.Q(parent__isnull=False) | models.Q(name="organisation"), name="one_root_of_quotas"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class QuotaGrant(models.Model):
    """Slots of one accelerator (`cpu` too), with Kueue's meaning: scheduling/policy/snapshot.py, `Grant`."""

    node = models.ForeignKey(QuotaNode, on_delete=models.CASCADE, related_name="grants")
    accelerator = models.CharField(max_length=40)
    nominal = models.PositiveIntegerField(default=0)
    borrow_limit = models.PositiveIntegerField(null=True)
    lend_limit = models.PositiveIntegerField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["node", "accelerator"], name="one_quota_per_node_and_accelerator")
        ]

    def __str__(self) -> str:
        return f"{self.nominal} of {self.accelerator} for {self.node_id}"


class NominalChange(models.Model):
    """A change of a subtree's nominal slots of one accelerator at `time`, for the usage history."""

    node = models.ForeignKey(QuotaNode, on_delete=models.CASCADE, related_name="+")
    accelerator = models.CharField(max_length=40)
    time = models.DateTimeField(db_index=True)
    before = models.BigIntegerField()
    after = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.before} to {self.after} of {self.accelerator} for {self.node_id}"


class AdmissionSettings(models.Model):
    """Admission settings (scheduling/policy/snapshot.py, `Settings`). One row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    fair_share = models.BooleanField(default=True)
    half_life_seconds = models.PositiveIntegerField(default=7 * 86_400)
    age_step_seconds = models.PositiveIntegerField(default=86_400)
    backfill = models.BooleanField(default=True)
    preempt = models.BooleanField(default=True)
    protected_seconds = models.PositiveIntegerField(default=600)

    def __str__(self) -> str:
        return "admission settings"
