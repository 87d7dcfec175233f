"""Erasures of teams."""

from django.db import models

from athanor.accounts.models import Team
from athanor.artifacts.models import Deletion


class Erasure(models.Model):
    """Progress of the erasure of a team (erasure.py), and its certificate once it is complete.

    `keys`: fingerprints of the destroyed keys. `cursor`: id of the last job with all objects deleted.
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

    class Meta:
        db_table = "operations_erasure"  # its name before it moved to this app

    def __str__(self) -> str:
        return f"erasure of {self.team_id}"
