"""Data sets with their aliases, tokenised forms and reports. Import them from `athanor.artifacts.models`."""

from typing import Any, ClassVar

from django.db import models

from athanor.accounts.models import Team, User
from athanor.artifacts.deletion_models import Deletion
from athanor.core import ids
from athanor.core.leases import LeasedModel
from athanor.jobs.models import Attempt, Job


class Dataset(models.Model):
    """A team's data. `files` (StoredFile) is set for uploads; builtin text and S3 prefixes are listed when read.

    A row is one version, which never changes: uploads of the same name are numbered. Other data has version 1.
    """

    class Origin(models.TextChoices):
        BUILTIN = "builtin"
        SEALED = "sealed"
        PLAIN = "plain"

    id = models.CharField(primary_key=True, max_length=40, default=ids.dataset_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="datasets")
    name = models.CharField(max_length=300)
    version = models.PositiveIntegerField(default=1, db_default=1)  # the numbers of deleted versions are not used again
    origin = models.CharField(max_length=10, choices=Origin.choices)
    format = models.CharField(max_length=10, default="auto")
    size_bytes = models.BigIntegerField(default=0)
    documents = models.BigIntegerField(null=True)
    # Of an upload, as its first lines or its columns show (inspection.Inspection). `fields`: null if not known.
    text_field = models.CharField(max_length=100, blank=True, default="", db_default="")
    fields = models.JSONField(null=True)
    files = models.JSONField(default=list)
    tag = models.CharField(max_length=1000, blank=True, default="")  # of UploadManifest, for uploads
    deletion = models.ForeignKey(Deletion, null=True, on_delete=models.PROTECT, related_name="+")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    preparation: Any = None  # previews.Preparation, once previews.load_preparations was called
    report: Any = None  # the newest DataReport, None without one, once data_reports.load_newest was called

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name", "version"], name="version_is_unique_in_a_data_set")
        ]

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.origin == self.Origin.SEALED else self.name

    @property
    def spec_source(self) -> str:
        """Return what a spec writes in `source` to train on this version."""
        return f"dataset:{self}" if self.origin == self.Origin.SEALED else self.name

    @property
    def alias_names(self) -> list[str]:
        """Return the names of the aliases that name it, sorted."""
        return sorted(alias.name for alias in self.aliases.all())


class DatasetAlias(models.Model):
    """A name, such as `reviewed`, for one version of a data set. It can be moved to another version."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    dataset_name = models.CharField(max_length=300)
    name = models.CharField(max_length=63)
    version = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="aliases")
    moved_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    moved_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "dataset_name", "name"], name="alias_is_unique_in_a_data_set")
        ]

    def __str__(self) -> str:
        return f"{self.dataset_name}@{self.name}"


class PreparedDataset(models.Model):
    """A data set tokenised by one recipe (trainer.contract.recipe), for later jobs of the team to use.

    No further attempt receives a discarded form; attempts that have it may read it until they end.
    """

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="prepared")
    recipe = models.CharField(max_length=64)
    manifest = models.JSONField()
    size_bytes = models.BigIntegerField(default=0)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    forgotten_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["dataset", "recipe"],
                condition=models.Q(forgotten_at__isnull=True),
                name="one_known_preparation_per_recipe",
            )
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id} by {self.recipe[:12]}"


class DataReport(models.Model):
    """The data report of a data set (trainer.contract.data_report), made by a job and encrypted with the data set's
    key. It is deleted with the data set.

    `digest`, and the numbers of kinds of findings by severity, are those of the content, which was read when it was
    registered.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.data_report_id, editable=False)
    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="reports")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+")
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="+")
    manifest = models.JSONField()
    digest = models.CharField(max_length=64)
    size_bytes = models.BigIntegerField()
    critical = models.PositiveIntegerField()
    critical_kinds = models.JSONField(default=list)  # their names
    warning = models.PositiveIntegerField()
    info = models.PositiveIntegerField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "dataset"], name="one_report_of_a_data_set_per_attempt")
        ]

    def __str__(self) -> str:
        return f"report of {self.dataset_id} by {self.job_id}"


class PreparationClaim(LeasedModel):
    """The attempt that prepares a data set by one recipe, while it does, or the error that it found in the data.

    The row goes with the registration of the result.
    """

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="+")
    recipe = models.CharField(max_length=64)
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="+")
    store = models.CharField(
        max_length=300, blank=True, default="", db_default=""
    )  # HOST:PORT where the attempt's nodes can help
    data_error = models.TextField(blank=True, default="")
    failed_at = models.DateTimeField(null=True)  # set with `data_error`

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["dataset", "recipe"], name="one_claim_per_recipe")
        ]

    def __str__(self) -> str:
        return f"claim of {self.dataset_id} by {self.recipe[:12]}"
