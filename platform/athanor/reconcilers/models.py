"""When each reconciler failed last."""

from django.db import models


class ReconcilerFailure(models.Model):
    """The last failure of a reconciler, on any worker. Its last run is kept in Valkey (`backlog.py`)."""

    task = models.CharField(primary_key=True, max_length=60)
    failed_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        db_table = "operations_sweeperrun"  # its name before it moved to this app

    def __str__(self) -> str:
        return f"{self.task} at {self.failed_at}"
