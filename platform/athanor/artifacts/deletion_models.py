"""Deletions of stored data. Import them from `athanor.artifacts.models`, which Django reads."""

from typing import ClassVar

from django.db import models

from athanor.accounts.models import Team, User
from athanor.core import ids


class Deletion(models.Model):
    """Deleted data: hidden from its creation on, its objects deleted after `purge_after`."""

    class Kind(models.TextChoices):
        JOB = "job"
        ARTIFACT = "artifact"
        CHECKPOINT = "checkpoint"
        DATASET = "dataset"
        PROJECT = "project"
        TEAM = "team"

    id = models.CharField(primary_key=True, max_length=40, default=ids.deletion_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    target_id = models.CharField(max_length=40)
    name = models.CharField(max_length=300)
    size_bytes = models.BigIntegerField()
    deleted_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    version = models.PositiveIntegerField(null=True)  # of a data set
    purge_after = models.DateTimeField()
    purge_started_at = models.DateTimeField(null=True)
    purged_at = models.DateTimeField(null=True)
    restored_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(
                fields=["purge_after"],
                condition=models.Q(purged_at=None, restored_at=None),
                name="deletions_to_purge",
            )
        ]

    def __str__(self) -> str:
        return f"deletion of {self.target_id}"

    @property
    def label(self) -> str:
        """Return the name, of a version of a data set with its number."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @property
    def state(self) -> str:
        """Return pending (can be restored), purging, purged or restored."""
        if self.purged_at or self.restored_at:
            return "purged" if self.purged_at else "restored"
        return "purging" if self.purge_started_at else "pending"
