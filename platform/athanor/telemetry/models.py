"""Progress, heartbeats, writers, and the chunks, blocks and segments of metrics and logs."""

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from athanor.jobs.models import Attempt, Job


class Progress(models.Model):
    """The newest values of one job: what lists and headers show without reading series."""

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="progress")
    phase = models.CharField(max_length=40, blank=True, default="")
    step = models.IntegerField(default=-1)
    values = models.JSONField(default=dict)
    trained_tokens = models.FloatField(
        default=0.0, db_default=0.0, help_text="of all reported steps, those that were repeated too"
    )
    trained_seconds = models.FloatField(default=0.0, db_default=0.0, help_text="step time of the same steps")
    validation_first = models.FloatField(null=True)
    validation_last = models.FloatField(null=True)
    log_lines = models.BigIntegerField(default=0)
    segment = models.CharField(max_length=60, blank=True, default="", help_text="of the newest point")
    loose_rows = models.PositiveIntegerField(default=0, help_text="steps in metric chunks as they came")
    loose_lines = models.PositiveIntegerField(default=0, help_text="lines in log chunks as they came")
    progressed_at = models.DateTimeField(null=True, help_text="when the platform last received progress of the work")
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.job_id} at step {self.step}"

    @property
    def mean_tokens_per_second(self) -> float | None:
        """Return the tokens of all reported steps divided by their step time, None before the first."""
        return self.trained_tokens / self.trained_seconds if self.trained_seconds > 0 else None


class Heartbeat(models.Model):
    """The last heartbeat of each node's agent."""

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
    """One writer of one attempt, with the sequence number of its next batch."""

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
    """One batch, as compressed JSON (codec.pack_rows)."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    content = models.BinaryField()
    count = models.PositiveIntegerField()

    class Meta:
        abstract = True


class MetricChunk(Chunk):
    """Points of steps `first_step`..`last_step` of all series, in the order in which they arrived.

    Unflushed: compaction.py moves them into series; until then, readers merge them with the series.
    """

    generation = models.PositiveIntegerField()
    first_step = models.PositiveIntegerField()
    last_step = models.PositiveIntegerField()

    class Meta:
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["attempt", "id"])]

    def __str__(self) -> str:
        return f"steps {self.first_step}..{self.last_step} of {self.attempt_id}"


class MetricSegment(models.Model):
    """What one worker group of one attempt drew, from `first_step` on.

    Earlier segments are hidden from there on, because those steps were repeated, unless a single attempt is requested.
    """

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    generation = models.PositiveIntegerField()
    first_step = models.PositiveIntegerField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "generation"], name="one_segment_per_generation")
        ]

    def __str__(self) -> str:
        return f"generation {self.generation} of {self.attempt_id}"


class MetricSeries(models.Model):
    """One series of one segment. `tail` contains, for every level, what does not fill a block yet (rollups.py)."""

    segment = models.ForeignKey(MetricSegment, on_delete=models.CASCADE, related_name="series")
    name = models.CharField(max_length=200)
    points = models.BigIntegerField()
    first_step = models.BigIntegerField()
    last_step = models.BigIntegerField()
    tail = models.BinaryField()
    finest_level = models.PositiveSmallIntegerField(default=0, help_text="retention has removed what is finer")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["segment", "name"], name="one_series_per_name_and_segment")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.segment_id}"


class MetricBlock(models.Model):
    """A full block of one level of a series. Immutable."""

    series = models.ForeignKey(MetricSeries, on_delete=models.CASCADE, related_name="blocks")
    level = models.PositiveSmallIntegerField()
    first_step = models.BigIntegerField()
    last_step = models.BigIntegerField()
    content = models.BinaryField()

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["series", "level", "first_step", "last_step"], name="blocks_of_a_stretch")
        ]

    def __str__(self) -> str:
        return f"steps {self.first_step}..{self.last_step} of {self.series_id} at level {self.level}"


class LogChunk(Chunk):
    """Lines `first_line`..`last_line` of the job, in the order they were received.

    `ranks` and `signature` (logs.signature) let a search skip chunks. Both are null until the chunk is
    compacted with others (compaction.py).
    """

    first_line = models.BigIntegerField()
    last_line = models.BigIntegerField()
    ranks = ArrayField(models.IntegerField(), null=True)
    signature = models.BinaryField(null=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["attempt", "last_line"], name="lines_of_an_attempt"),
            models.Index(fields=["attempt"], name="loose_lines", condition=models.Q(signature=None)),
        ]

    def __str__(self) -> str:
        return f"lines from {self.first_line} of {self.attempt_id}"


class SystemInterval(models.Model):
    """Samples of all nodes of an attempt in an interval, aggregated by series (system.py)."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    time = models.DateTimeField(help_text="start of the interval")
    seconds = models.PositiveIntegerField(help_text="length of the interval")
    values = models.JSONField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "seconds", "time"], name="one_row_per_system_interval")
        ]

    def __str__(self) -> str:
        return f"{self.attempt_id} at {self.time}"


class NodeSample(models.Model):
    """The newest sample of a node of an attempt."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    node = models.CharField(max_length=253)
    time = models.DateTimeField()
    values = models.JSONField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "node"], name="one_sample_per_node")
        ]

    def __str__(self) -> str:
        return f"{self.node} of {self.attempt_id} at {self.time}"
