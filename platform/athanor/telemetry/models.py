from typing import ClassVar

from django.db import models

from athanor.jobs.models import Attempt, Job


class Progress(models.Model):
    """The newest of everything, for one job: what lists and headers show without reading series."""

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="progress")
    phase = models.CharField(max_length=40, blank=True, default="")
    step = models.IntegerField(default=-1)
    values = models.JSONField(default=dict)
    timings = models.JSONField(default=dict)
    validation_first = models.FloatField(null=True)
    validation_last = models.FloatField(null=True)
    log_lines = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.job_id} at step {self.step}"


class Heartbeat(models.Model):
    """The last word of each node's agent."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="heartbeats")
    node_rank = models.PositiveIntegerField()
    generation = models.PositiveIntegerField()
    phase = models.CharField(max_length=40)
    step = models.IntegerField()
    processes_alive = models.PositiveIntegerField()
    received_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "node_rank"], name="one_heartbeat_row_per_node")
        ]

    def __str__(self) -> str:
        return f"node {self.node_rank} of {self.attempt_id}"


class Writer(models.Model):
    """Where one writer of one attempt stands: the sequence number of the batch that comes next."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=10)
    name = models.CharField(max_length=40)
    next_sequence = models.PositiveIntegerField(default=0)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "kind", "name"], name="one_row_per_writer")
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.name} in {self.attempt_id}"


class Chunk(models.Model):
    """One batch, as compressed JSON."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    content = models.BinaryField()
    count = models.PositiveIntegerField()

    class Meta:
        abstract = True


class MetricChunk(Chunk):
    """Points of steps `first_step`..`last_step`, in the order in which chunks came."""

    generation = models.PositiveIntegerField()
    first_step = models.PositiveIntegerField()
    last_step = models.PositiveIntegerField()

    class Meta:
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["attempt", "id"])]

    def __str__(self) -> str:
        return f"steps {self.first_step}..{self.last_step} of {self.attempt_id}"


class LogChunk(Chunk):
    """`first_line` numbers its lines within the job, in the order they were received."""

    first_line = models.BigIntegerField()

    class Meta:
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["attempt", "first_line"])]

    def __str__(self) -> str:
        return f"lines from {self.first_line} of {self.attempt_id}"
