from django.db import models
from django.utils import timezone

from athanor.accounts.models import User
from athanor.core import ids
from athanor.core.leases import LeasedModel


class SweeperRun(models.Model):
    """How one sweeper's last runs went, whichever worker ran it and whoever sent for it."""

    task = models.CharField(primary_key=True, max_length=60)
    ran_at = models.DateTimeField(null=True)
    seconds = models.FloatField(null=True)
    failed_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")

    def __str__(self) -> str:
        return f"{self.task} at {self.ran_at}"


class Simulation(LeasedModel):
    """What an administrator or auditor asked the simulator of admission (operations/simulations.py), and its answer.

    `result` is there once it is done; `error` once it failed, for people. `tries`: workers that began with it."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.simulation_id, editable=False)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    tries = models.PositiveSmallIntegerField(default=0)
    request = models.JSONField()
    result = models.JSONField(null=True)
    error = models.TextField(blank=True, default="")

    def __str__(self) -> str:
        return self.id
