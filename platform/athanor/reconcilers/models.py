"""When each reconciler ran last."""

from django.db import models


class ReconcilerRun(models.Model):
    """Result of the last runs of a reconciler, on any worker."""

    task = models.CharField(primary_key=True, max_length=60)
    ran_at = models.DateTimeField(null=True)
    seconds = models.FloatField(null=True)
    failed_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        db_table = "operations_sweeperrun"  # its name before it moved to this app

    def __str__(self) -> str:
        return f"{self.task} at {self.ran_at}"
