"""Records of jobs, attempts, nodes, events, labels and projects."""

from datetime import datetime
from typing import Any, ClassVar

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.clusters.models import Pool
from athanor.core import ids
from athanor.core.leases import LeasedModel
from athanor.jobs.reasons import explain
from athanor.jobs.states import FINAL, AttemptStatus, Desired, Health, JobStatus


def _choices(values: Any) -> list[tuple[str, str]]:
    return [(member.value, member.value) for member in values]


class Project(models.Model):
    """What jobs of a team are kept under; jobs name it. An archived one takes no more."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.project_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=100)
    description = models.TextField(blank=True, default="")
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    archived_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, editable=False)

    # Added by projects.with_activity.
    job_count: int
    live_job_count: int
    last_submitted_at: datetime | None

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "name"], name="project_name_is_unique_in_a_team")
        ]

    def __str__(self) -> str:
        return self.name


class Job(LeasedModel):
    """One run as a user sees it. `desired` is written by jobs/services.py, `status` by jobs/transitions.py."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.job_id, editable=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=100)
    project = models.CharField(max_length=100)
    labels = models.JSONField(default=dict)
    priority = models.IntegerField(default=0)
    spec = models.JSONField()
    resolved_spec = models.JSONField()
    spec_digest = models.CharField(max_length=64)
    warnings = models.JSONField(default=list)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="jobs")
    slots = models.PositiveIntegerField()
    # Copied from the resolved spec for queries over many jobs. `schedule` is None without a schedule.
    nodes = models.PositiveIntegerField(default=1)
    time_limit_seconds = models.PositiveIntegerField(default=86_400)
    schedule = models.JSONField(null=True)
    dataset_id = models.CharField(max_length=40)
    rollbacks = models.JSONField(default=list)  # `trainer.contract.rollback.Rollback`, oldest first
    more_dataset_ids = models.JSONField(default=list)  # of a mixture, in the order of its parts
    forked_from = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="forks")

    desired = models.CharField(max_length=10, choices=_choices(Desired), default=Desired.RUN.value)
    status = models.CharField(max_length=12, choices=_choices(JobStatus), default=JobStatus.QUEUED.value)
    reason = models.CharField(max_length=30, blank=True, default="")
    reason_detail = models.TextField(blank=True, default="")
    health = models.CharField(max_length=12, choices=_choices(Health), default=Health.OK.value)

    event_seq = models.PositiveIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    queued_at = models.DateTimeField(auto_now_add=True)
    admitted_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    act_after = models.DateTimeField(null=True)
    not_before = models.DateTimeField(null=True)
    deadline = models.DateTimeField(null=True)
    preemptions = models.PositiveIntegerField(default=0)  # how often its slots were reclaimed
    waiting = models.JSONField(null=True)  # what admission last said of it (scheduling/explain.py)
    expires_at = models.DateTimeField(null=True)

    timeline_events: list["JobEvent"]  # added by selectors.TIMELINE_EVENTS

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["status", "priority", "id"]),
            # The name beside the id: a search for a part of it reads the index alone, and no job.
            models.Index(fields=["team", "-id"], include=["name"], name="jobs_of_a_team"),
            models.Index(fields=["team", "status", "-id"], name="jobs_by_status"),
            models.Index(fields=["team", "project", "-id"], name="jobs_by_project"),
            models.Index(fields=["created_by", "-id"], name="jobs_by_person"),
            models.Index(
                fields=["team", "pool", "priority", "id"],
                condition=models.Q(status=JobStatus.QUEUED.value),
                name="jobs_that_wait",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    @property
    def explanation(self) -> dict[str, str] | None:
        """Why the job waits or ended, with the remedy. None without a reason."""
        return explain(
            self.reason,
            self.reason_detail,
            trains=self.resolved_spec["training"] is not None,
            has_ended=JobStatus(self.status) in FINAL,
        )

    @property
    def dataset_ids(self) -> list[str]:
        """One for each part of the spec's data, in order."""
        return [self.dataset_id, *self.more_dataset_ids]


class Label(models.Model):
    """One of `Job.labels`, for searches: under row-level security an index can serve equality of text, not JSON."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+", db_index=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    key = models.CharField(max_length=100)
    value = models.CharField(max_length=200)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "key"], name="one_value_per_label")
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["key", "value", "-job"], name="jobs_by_label"),
        ]

    def __str__(self) -> str:
        return f"{self.key}={self.value} of {self.job_id}"


class DatasetUse(models.Model):
    """A job that reads a data set of its team: the jobs of a data set, found by an index as labels are.

    Jobs on the builtin text have none. `prepares`: the job only tokenises it.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    dataset_id = models.CharField(max_length=40)
    prepares = models.BooleanField()

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["dataset_id", "-job"], name="jobs_by_dataset"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} reads {self.dataset_id}"


class NameSearch(models.Model):
    """What a search for a part of a name finds a job by (jobs/name_search.py). A trigger writes it.

    `keys`: the 3-grams of the name in capitals, `#` with the end of the id, and the id of the team.
    """

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="+", db_constraint=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_constraint=False, db_index=False)
    keys = ArrayField(models.TextField())

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            # What a submit adds waits in a list, which a search reads too: a short one.
            GinIndex(fields=["keys"], name="jobs_by_part_of_name", gin_pending_list_limit=256)
        ]

    def __str__(self) -> str:
        return f"keys of {self.job_id}"


class Dependency(models.Model):
    """`job` starts only after `upstream` has succeeded. Written once, when the job is submitted."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies")
    upstream = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="dependents")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "upstream"], name="one_dependency_per_pair")
        ]

    def __str__(self) -> str:
        return f"{self.job_id} after {self.upstream_id}"


class Attempt(LeasedModel):
    """One submission of a job to a backend. `backend_name` is a pure function of the id and unique for ever.

    What its backend said last: `native_*`, `phase`, `cause`, `explanation`, `expected_start_at` (backends/base.py).
    `native_nodes` are empty until its cluster has said where it runs; `lost_nodes` are those that it has removed since
    from the attempt, which continued. `launched_at` is when its processes could begin, after any queue of the backend's
    own: limits count from then.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.attempt_id, editable=False)
    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="attempts")
    number = models.PositiveIntegerField()
    backend_name = models.CharField(max_length=80, unique=True)
    backend_id = models.CharField(max_length=200, blank=True, default="")
    status = models.CharField(max_length=10, choices=_choices(AttemptStatus), default=AttemptStatus.PREPARED.value)
    reason = models.CharField(max_length=30, blank=True, default="")
    reason_detail = models.TextField(blank=True, default="")
    native_state = models.CharField(max_length=100, blank=True, default="")
    native_reason = models.TextField(blank=True, default="")
    phase = models.CharField(max_length=10, blank=True, default="")
    cause = models.CharField(max_length=20, blank=True, default="")
    explanation = models.TextField(blank=True, default="")
    expected_start_at = models.DateTimeField(null=True)
    native_nodes = models.JSONField(default=list)
    lost_nodes = models.JSONField(default=list, db_default=[])
    native_restarts = models.PositiveIntegerField(default=0)
    exit_status = models.IntegerField(null=True)
    submission_text = models.TextField(blank=True, default="")
    end_report = models.JSONField(null=True)
    absent_count = models.PositiveIntegerField(default=0)
    absent_since = models.DateTimeField(null=True)
    cancel_sent_at = models.DateTimeField(null=True)
    cancels_sent = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    submitted_at = models.DateTimeField(null=True)
    launched_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    observed_at = models.DateTimeField(null=True)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["id"], condition=~models.Q(status=AttemptStatus.ENDED.value), name="live_attempts")
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_numbers_are_unique_in_a_job"),
            models.UniqueConstraint(
                fields=["job"],
                condition=~models.Q(status=AttemptStatus.ENDED.value),
                name="one_live_attempt_per_job",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"

    def own_node(self, name: object) -> str | None:
        """Return the node of the attempt that its agent calls `name`, None for one that is not the attempt's.

        Only the cluster says where an attempt runs: agents are not trusted, in a rendezvous neither. On a single node,
        whatever name is sent means this node."""
        known = self.known_nodes
        if len(known) == 1:
            return known[0]
        return str(name) if name in known else None

    @property
    def known_nodes(self) -> list[str]:
        """Return the names of the nodes that the attempt runs or ran on, lost ones last."""
        return [*self.native_nodes, *self.lost_nodes]


class AttemptNode(models.Model):
    """A node's agent in a round of its attempt's rendezvous (dispatch/rendezvous_rounds.py).

    `round` is 0 when it was not seen for too long before its round was complete, and of a node that was lost before its
    agent joined, which has no address. `node_rank` is None until then, and
    for a spare node. `has_left`: it can run no ranks any more. `topology`: the switches above it, outermost first. All
    ranks of a round resume from the checkpoint `resume_id`, if any.

    `replacements`: how many nodes were requested in its place (dispatch/replace_nodes.py), the newest at
    `replacement_requested_at`, None if no request is left to cancel. `replacement_submitted_at` is None until the
    cluster has the newest request.
    """

    # No index of its own: PostgreSQL would use it to look for one node among all.
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="nodes", db_index=False)
    node_index = models.PositiveIntegerField()
    round = models.PositiveIntegerField()
    name = models.CharField(max_length=255)
    address = models.CharField(max_length=255)
    store_port = models.PositiveIntegerField()
    topology = models.JSONField(default=list)
    node_rank = models.PositiveIntegerField(null=True)
    has_left = models.BooleanField(default=False, db_default=False)
    replacements = models.PositiveIntegerField(default=0, db_default=0)
    replacement_requested_at = models.DateTimeField(null=True)
    replacement_submitted_at = models.DateTimeField(null=True)
    joined_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    resume_id = models.CharField(max_length=40, blank=True, default="")

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(
                fields=["attempt"],
                condition=models.Q(replacement_requested_at__isnull=False),
                name="requested_replacements",
            )
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["attempt", "node_index"], name="one_place_per_node_of_an_attempt")
        ]

    def __str__(self) -> str:
        return f"node {self.node_index} of {self.attempt_id}"


class RendezvousRound(models.Model):
    """The newest rendezvous round of an attempt, with what a join needs to know of the other nodes.

    `needed`: the nodes that the job asked for; `total`: those and its spare ones; `left`: how many have left for good.
    `min_nodes`: the fewest that the job can train on, None for `needed`. `joined`: how many nodes are in the round.
    `enough_at`: when `fewest` were, or `needed` if they have joined, None before; in the first round, when the newest
    one joined. `first_node`: the index of node rank
    0, None before nodes have ranks. `placed`: how many have; 0 if an earlier version has placed `needed`. `grows_from`:
    if the round was begun because the run can continue on more nodes, the number of nodes with ranks before it, else 0.
    """

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="+")
    number = models.PositiveIntegerField()
    needed = models.PositiveIntegerField()
    total = models.PositiveIntegerField()
    min_nodes = models.PositiveIntegerField(null=True)
    left = models.PositiveIntegerField(default=0, db_default=0)
    joined = models.PositiveIntegerField(default=0)
    enough_at = models.DateTimeField(null=True)
    first_node = models.PositiveIntegerField(null=True)
    placed = models.PositiveIntegerField(default=0, db_default=0)
    grows_from = models.PositiveIntegerField(default=0, db_default=0)

    # Read beside the columns (dispatch/rendezvous_rounds.py): whether the attempt is over, and the database's time.
    is_over: bool
    now: datetime

    def __str__(self) -> str:
        return f"round {self.number} of {self.attempt_id}"

    @property
    def fewest(self) -> int:
        """Return with how many nodes the round may close."""
        return self.min_nodes or self.needed

    @property
    def num_nodes(self) -> int:
        """Return the number of nodes with ranks, once they have them."""
        return self.placed or self.needed


class JobEvent(models.Model):
    """What happened, in order. `seq` counts from 1 without gaps within a job.

    `team_seq` does so within the team, in the order of commits: jobs/event_feed.py fills it after the commit.
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    # The job's team, for the feed's index. The job's own foreign key vouches for it; checking it again would cost.
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_constraint=False, db_index=False)
    seq = models.PositiveIntegerField()
    team_seq = models.BigIntegerField(null=True, editable=False)
    type = models.CharField(max_length=60)
    time = models.DateTimeField()
    actor = models.CharField(max_length=80)
    message = models.TextField(blank=True, default="")
    data = models.JSONField(default=dict)
    request_id = models.CharField(max_length=64, blank=True, default="")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "seq"], name="event_seq_is_unique_in_a_job"),
            models.UniqueConstraint(fields=["team", "team_seq"], name="event_team_seq_is_unique_in_a_team"),
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["id"], condition=models.Q(team_seq__isnull=True), name="events_without_a_number")
        ]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.seq} {self.type}"


class EventHead(models.Model):
    """The newest number in a team's feed of events."""

    team = models.OneToOneField(Team, primary_key=True, on_delete=models.CASCADE, related_name="+")
    seq = models.BigIntegerField()

    def __str__(self) -> str:
        return f"events of {self.team_id} to #{self.seq}"


class IdempotencyRecord(models.Model):
    """One answered request of a team, by the key its sender chose."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    digest = models.CharField(max_length=64)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "key"], name="idempotency_key_is_unique_in_a_team")
        ]

    def __str__(self) -> str:
        return f"{self.key} -> {self.job_id}"
