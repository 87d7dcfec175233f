from django.db import models
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.artifacts.models import Deletion
from athanor.core import ids
from athanor.core.leases import LeasedModel


class SweeperRun(models.Model):
    """Result of a reconciler's last runs, on any worker."""

    task = models.CharField(primary_key=True, max_length=60)
    ran_at = models.DateTimeField(null=True)
    seconds = models.FloatField(null=True)
    failed_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")

    def __str__(self) -> str:
        return f"{self.task} at {self.ran_at}"


class Erasure(models.Model):
    """The erasure of a team (operations/erasure.py): how far it is, and its certificate once it is complete.

    `keys` names the keys that were destroyed, by fingerprints. `cursor` is the job up to which everything is gone.
    """

    deletion = models.OneToOneField(Deletion, primary_key=True, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    team_name = models.CharField(max_length=63)
    keys = models.JSONField(default=dict)
    keys_destroyed_at = models.DateTimeField()
    cursor = models.CharField(max_length=40, blank=True, default="")
    num_jobs = models.BigIntegerField(default=0)
    num_objects = models.BigIntegerField(default=0)
    num_bytes = models.BigIntegerField(default=0)
    claimed_until = models.DateTimeField(null=True)
    certificate = models.JSONField(null=True)

    def __str__(self) -> str:
        return f"erasure of {self.team_id}"


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
