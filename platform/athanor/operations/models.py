from django.db import models


class SweeperRun(models.Model):
    """How one sweeper's last runs went, whichever worker ran it and whoever sent for it."""

    task = models.CharField(primary_key=True, max_length=60)
    ran_at = models.DateTimeField(null=True)
    seconds = models.FloatField(null=True)
    failed_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True, default="")

    def __str__(self) -> str:
        return f"{self.task} at {self.ran_at}"
