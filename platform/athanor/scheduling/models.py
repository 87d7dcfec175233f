"""Records of admission cycles, start estimates and simulations."""

from typing import ClassVar

from django.db import models
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.core import ids
from athanor.core.leases import LeasedModel
from athanor.jobs.models import Job


class AdmissionCycle(models.Model):
    """An admission cycle that started or preempted jobs, with its snapshot (stored_cycles.py).

    `digest` is the SHA-256 of the snapshot's canonical JSON; both blobs are that JSON, compressed by zstandard.
    """

    time = models.DateTimeField(default=timezone.now, db_index=True)
    digest = models.CharField(max_length=64)
    snapshot = models.BinaryField()
    decisions = models.BinaryField()
    considered = models.PositiveIntegerField()
    admitted = models.JSONField(default=list)
    preempted = models.JSONField(default=list)
    seconds = models.FloatField()

    def __str__(self) -> str:
        return f"cycle {self.pk} at {self.time}"


class StartEstimate(models.Model):
    """The first start estimate of a queued job per wait, and its actual start, for calibration."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="start_estimates")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    made_at = models.DateTimeField()
    p50_at = models.DateTimeField()
    p90_at = models.DateTimeField()
    # Before calibration (scheduling/start_forecast.py).
    raw_p50_seconds = models.PositiveIntegerField()
    raw_p90_seconds = models.PositiveIntegerField()
    started_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["job"], condition=models.Q(started_at__isnull=True), name="open_estimates"),
            models.Index(fields=["-started_at"], name="judged_estimates"),
            models.Index(fields=["made_at"], name="estimates_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} starts at about {self.p50_at}"


class Simulation(LeasedModel):
    """A request to the admission simulator (simulations.py), and its result.

    `result` is set when it is done, `error` when it failed. `tries`: number of workers that started it.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.simulation_id, editable=False)
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    tries = models.PositiveSmallIntegerField(default=0)
    request = models.JSONField()
    result = models.JSONField(null=True)
    error = models.TextField(blank=True, default="")

    class Meta:
        db_table = "operations_simulation"  # its name before it moved to this app
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["ended_at"], name="simulations_by_end")]

    def __str__(self) -> str:
        return self.id
