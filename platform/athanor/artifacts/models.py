"""Keys, secrets, data sets, checkpoints, artifacts, registered models, profiles, deletions and stored sizes."""

from collections.abc import Collection
from typing import ClassVar

from django.db import models

from athanor.accounts.models import Team, User
from athanor.artifacts.dataset_models import DataReport as DataReport
from athanor.artifacts.dataset_models import Dataset as Dataset
from athanor.artifacts.dataset_models import DatasetAlias as DatasetAlias
from athanor.artifacts.dataset_models import PreparationClaim as PreparationClaim
from athanor.artifacts.dataset_models import PreparedDataset as PreparedDataset
from athanor.artifacts.deletion_models import Deletion as Deletion
from athanor.artifacts.key_models import DataKey as DataKey
from athanor.artifacts.key_models import SigningKey as SigningKey
from athanor.artifacts.key_models import TeamKey as TeamKey
from athanor.artifacts.key_models import TeamSecret as TeamSecret
from athanor.core import ids
from athanor.core.leases import LeasedModel
from athanor.jobs.models import Attempt, Job


class StoredThing(models.Model):
    """The common fields of checkpoints and artifacts. `manifest` is the trainer's, as it was registered."""

    step = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    manifest = models.JSONField()
    deletion = models.ForeignKey(Deletion, null=True, on_delete=models.PROTECT, related_name="+")
    metrics = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    # The key by which a team reads the artifact of another team, as grants.artifact_for sets it; None for one's own.
    granted: "GrantedKey | None" = None

    class Meta:
        abstract = True

    @property
    def owner(self) -> Team:
        """Return the team that it belongs to."""
        raise NotImplementedError  # abstract: a model class of Django cannot have the metaclass of `abc`

    @property
    def reader_id(self) -> str:
        """Return the id of the team by which the caller reads it: its own, or one that it is shared with."""
        return self.owner.id if self.granted is None else self.granted.team_id


class Checkpoint(StoredThing, LeasedModel):
    """A checkpoint of an attempt, at one step of one worker group (`generation`). The scrub leases the row."""

    class State(models.TextChoices):
        INTACT = "intact"
        DAMAGED = "damaged"
        DIVERGED = "diverged"

    id = models.CharField(primary_key=True, max_length=40, default=ids.checkpoint_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="%(class)ss")
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="%(class)ss")
    generation = models.PositiveIntegerField()
    # Set when retention gives it up; its objects are deleted after that, never before.
    retired_at = models.DateTimeField(null=True)
    # Set when it could not be read, or by an administrator; no attempt resumes from it any more. `damage`: why.
    damaged_at = models.DateTimeField(null=True)
    damage = models.TextField(blank=True, default="", db_default="")
    # Set when its run went back to an earlier one, because the loss diverged.
    diverged_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)
    # When the scrub (artifacts/scrub.py) had last read all parts, and how many it has read since then.
    verified_at = models.DateTimeField(null=True)
    verified_parts = models.PositiveIntegerField(default=0, db_default=0)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "generation", "step"], name="one_checkpoint_per_step")
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(
                fields=["job", "verified_at"],
                condition=models.Q(retired_at=None, damaged_at=None, diverged_at=None, deletion=None),
                name="checkpoints_to_verify",
            )
        ]

    def __str__(self) -> str:
        return f"checkpoint of {self.job_id} at step {self.step}"

    @property
    def owner(self) -> Team:
        """Return the team of its job."""
        return self.job.team

    @property
    def key_owner(self) -> str:
        """Return the owner of the data key of its files: its job."""
        return self.job_id

    @property
    def state(self) -> State:
        """Return whether an attempt may resume from it."""
        if self.damaged_at is not None:
            return self.State.DAMAGED
        return self.State.INTACT if self.diverged_at is None else self.State.DIVERGED


class ScrubBudget(models.Model):
    """What all workers have read for the scrub, as the time until which its budget is spent. One row."""

    spent_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"spent until {self.spent_until}"


class Artifact(StoredThing):
    """A model, log or profile that a job stored, or a model that a user imported, which has no job or attempt."""

    class Kind(models.TextChoices):
        MODEL = "model"
        LOG = "log"
        PROFILE = "profile"

    id = models.CharField(primary_key=True, max_length=40, default=ids.artifact_id, editable=False)
    job = models.ForeignKey(Job, null=True, on_delete=models.PROTECT, related_name="artifacts")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.PROTECT, related_name="artifacts")
    kind = models.CharField(max_length=10, choices=Kind.choices)
    name = models.CharField(max_length=200)

    is_own: bool  # as lineage reads it: whether it is of one of the caller's teams
    results: list["EvaluationResult"]  # as registry_selectors.results_by reads them: those of some teams, oldest first

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["attempt", "kind"],
                condition=~models.Q(kind="profile"),
                name="one_artifact_of_a_kind_per_attempt",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.job_id}" if self.job_id else f"imported {self.kind} {self.pk}"

    @property
    def owner(self) -> Team:
        """Return the team of its job, or the one that imported it."""
        if self.granted is not None:
            return self.granted.grant.owner
        return self.model_import.team if self.job is None else self.job.team

    @property
    def key_owner(self) -> str:
        """Return the owner of the data key of its files: its job, or, of an imported model, itself."""
        return self.job_id or self.pk


class ModelImport(models.Model):
    """The upload of a folder as a model, from its beginning; `artifact` is its id alone until the upload is complete.

    `not_trainable`: why no job can start from the model, empty if one can.
    """

    artifact = models.OneToOneField(
        Artifact, primary_key=True, on_delete=models.CASCADE, db_constraint=False, related_name="model_import"
    )
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    user = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    not_trainable = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"import of {self.artifact_id}"


def of_teams(team_ids: Collection[str]) -> models.Q:
    """Return the condition on artifacts that they are of jobs or imports of these teams."""
    return models.Q(job__team_id__in=list(team_ids)) | models.Q(model_import__team_id__in=list(team_ids))


class RegisteredModel(models.Model):
    """A model of a team by name, with numbered versions. `card`: its model card, in Markdown."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.model_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=100)
    card = models.TextField(blank=True, default="")
    tags = models.JSONField(default=list)
    last_version = models.PositiveIntegerField(default=0)  # the numbers of deleted versions are not used again
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    num_versions: int  # as registry_selectors.models_of counts them
    is_shared: bool  # as registry_selectors.models_of finds it: whether another team has granted the caller access

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="model_name_is_unique_in_a_team")
        ]

    def __str__(self) -> str:
        return self.name


class ModelVersion(models.Model):
    """The export of a job, or an import, as a numbered version of a model. It never changes, and its artifact cannot be
    deleted.

    `digest`: SHA-256 of the artifact's manifest, which contains the digests of all files.
    """

    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    artifact = models.ForeignKey(Artifact, on_delete=models.PROTECT, related_name="versions")
    digest = models.CharField(max_length=64)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["model", "number"], name="version_numbers_are_unique_in_a_model"),
            models.UniqueConstraint(fields=["model", "artifact"], name="one_version_of_a_model_per_artifact"),
        ]

    def __str__(self) -> str:
        return f"{self.model.name}@{self.number}"

    attempt_number: int | None  # these two as registry_selectors.versions_of reads them
    not_trainable: str  # why no job can start from an imported model, empty if one can

    @property
    def made_by(self) -> dict[str, str] | None:
        """Return the id and name of the job, as the artifact has them: of a shared version the job cannot be read.

        None if it was imported.
        """
        return {"id": self.artifact.job_id, "name": self.artifact.name} if self.artifact.job_id else None

    @property
    def alias_names(self) -> list[str]:
        """Return the names of the aliases that name it, sorted."""
        return sorted(alias.name for alias in self.aliases.all())

    @property
    def evaluations(self) -> list["EvaluationResult"]:
        """Return the newest result of each metric of each evaluation, by their names."""
        found = {(row.name, row.metric): row for row in self.artifact.results}
        return [found[key] for key in sorted(found)]


class ModelAlias(models.Model):
    """A name, such as `production`, for one version of a model. It can be moved to another version."""

    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="aliases")
    name = models.CharField(max_length=63)
    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, related_name="aliases")
    moved_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    moved_at = models.DateTimeField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["model", "name"], name="alias_is_unique_in_a_model")
        ]

    def __str__(self) -> str:
        return self.name


class ModelGrant(models.Model):
    """Read access to all versions of a model, also later ones, that its team, `owner`, has granted to `team`."""

    model = models.ForeignKey(RegisteredModel, on_delete=models.CASCADE, related_name="grants")
    owner = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    granted_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["model", "team"], name="one_grant_of_a_model_per_team")
        ]

    def __str__(self) -> str:
        return f"{self.model_id} for {self.team_id}"


class GrantedKey(models.Model):
    """The data key of a version's artifact, wrapped by the key of `team`, which a grant lets read the version."""

    grant = models.ForeignKey(ModelGrant, on_delete=models.CASCADE, related_name="keys")
    version = models.ForeignKey(ModelVersion, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    wrapped = models.BinaryField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["grant", "version"], name="one_key_of_a_version_per_grant")
        ]

    def __str__(self) -> str:
        return f"key of version {self.version_id} for {self.team_id}"


class EvaluationResult(models.Model):
    """A metric of a model, computed by an evaluation job. It never changes.

    `artifact`: the export that was evaluated, None for a model in a bucket, which `base` names. `source`: the data set
    as the spec names it. `trained_on`: the data sets among those evaluated on that the model, or one that it started
    from, was trained on, by their ids with the id of the job; None if what it was trained on is not on record.
    `standard_error`, `low`, `high` (95 % interval): None for too little data. `items` (item_scores): None for many."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="evaluations")
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="+")
    artifact = models.ForeignKey(Artifact, null=True, on_delete=models.PROTECT, related_name="evaluations")
    base = models.CharField(max_length=1100)
    name = models.CharField(max_length=63)
    metric = models.CharField(max_length=30)
    source = models.CharField(max_length=1100)
    dataset = models.ForeignKey(Dataset, null=True, on_delete=models.SET_NULL, related_name="+")
    value = models.FloatField()
    n = models.BigIntegerField()
    tokens = models.BigIntegerField()
    standard_error = models.FloatField(null=True)
    low = models.FloatField(null=True)
    high = models.FloatField(null=True)
    trained_on = models.JSONField(null=True)
    items = models.BinaryField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "name", "metric"], name="one_result_of_a_metric_per_job")
        ]

    def __str__(self) -> str:
        return f"{self.name}.{self.metric} of {self.artifact_id or self.base}"


class ReplayedSegment(models.Model):
    """The result of a segment of a replay: steps of a finished job, computed again. It never changes.

    `job`: the replay. `start` and `end`: ids of the checkpoints of `replayed` between which its steps are; `start` is
    empty for a segment that begins before the first step. Other fields are those of `trainer.contract.replay`.
    """

    class Verdict(models.TextChoices):
        EQUAL = "equal"
        WITHIN_TOLERANCE = "within_tolerance"
        DIFFERS = "differs"
        NOT_COMPARABLE = "not_comparable"

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+")
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="+")
    replayed = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="+")
    number = models.PositiveIntegerField()
    start = models.CharField(max_length=40, blank=True)
    end = models.CharField(max_length=40)
    first_step = models.PositiveIntegerField()
    last_step = models.PositiveIntegerField()
    verdict = models.CharField(max_length=20, choices=Verdict.choices)
    is_exact = models.BooleanField()
    tolerance = models.FloatField()
    tensors = models.PositiveIntegerField()
    differing = models.PositiveIntegerField()
    differences = models.JSONField(default=list)
    because = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "number"], name="one_result_of_a_segment_per_replay")
        ]

    def __str__(self) -> str:
        return f"steps {self.first_step} to {self.last_step} of {self.replayed_id}: {self.verdict}"


class JobStorage(models.Model):
    """Objects under a job's prefix that no manifest names (artifacts/unreferenced.py).

    `unreferenced_*` is what the last scan found and left, `removed_*` what scans have deleted, `found_*` the counts of
    the current scan, which continues after `cursor`.
    """

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    newest_attempt = models.CharField(max_length=40)
    unreferenced_objects = models.BigIntegerField(default=0)
    unreferenced_bytes = models.BigIntegerField(default=0)
    removed_objects = models.BigIntegerField(default=0)
    removed_bytes = models.BigIntegerField(default=0)
    found_objects = models.BigIntegerField(default=0)
    found_bytes = models.BigIntegerField(default=0)
    cursor = models.CharField(max_length=1100, blank=True, default="")
    scanned_at = models.DateTimeField(null=True)
    next_scan_at = models.DateTimeField(null=True, db_index=True)

    def __str__(self) -> str:
        return f"storage of {self.job_id}"


class Profile(models.Model):
    """A requested profile of a running attempt: traces of its next `steps` steps, and their state.

    `nodes` contains what each node has registered (ProfileManifest, by the node's rank) until all have.
    """

    class State(models.TextChoices):
        REQUESTED = "requested"
        READY = "ready"
        FAILED = "failed"

    id = models.CharField(primary_key=True, max_length=40, default=ids.profile_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="profiles")
    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="profiles")
    number = models.PositiveIntegerField()
    steps = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=State.choices, default=State.REQUESTED)
    reason = models.TextField(blank=True, default="")
    first_step = models.PositiveIntegerField(null=True)
    last_step = models.PositiveIntegerField(null=True)
    nodes = models.JSONField(default=dict)
    artifact = models.OneToOneField(Artifact, null=True, on_delete=models.PROTECT, related_name="profile")
    requested_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "number"], name="profile_numbers_are_unique_in_a_job"),
            models.UniqueConstraint(
                fields=["job"], condition=models.Q(state="requested"), name="one_open_profile_per_job"
            ),
        ]

    def __str__(self) -> str:
        return f"profile {self.number} of {self.job_id}"
