"""Clusters, pools, nodes, their incidents, and health checks."""

from typing import ClassVar

from django.db import models
from django.utils import timezone

from athanor.backends.facts import NodeState
from athanor.core import ids
from athanor.core.leases import LeasedModel


class Cluster(LeasedModel):
    """A compute target. `kind` names a backend (backends/registry.py); `config` is that backend's configuration.

    The holder of the lease observes its attempts; `observed_at` is when the last complete observation ended. Free nodes
    are measured after their incidents if `preflight_after_incidents`, and every `preflight_every_hours`; None is never.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.cluster_id, editable=False)
    name = models.SlugField(max_length=63, unique=True)
    kind = models.CharField(max_length=20)
    config = models.JSONField(default=dict, blank=True)
    enabled = models.BooleanField(default=True)
    preflight_after_incidents = models.BooleanField(default=True, db_default=True)
    preflight_every_hours = models.PositiveIntegerField(null=True)
    observed_at = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class Pool(models.Model):
    """Identical slots of a cluster. A slot runs one trainer process: one accelerator, or one CPU core.

    `memory_bytes` is the host memory of one node, shared by its processes. `accelerator_memory_bytes` is that of one
    accelerator, null if it is not known or the slots are cores. The price is per slot-hour. Admission leaves as many
    nodes as `spare_nodes` free of jobs, so that a run that loses a node finds another without waiting.
    """

    id = models.CharField(primary_key=True, max_length=40, default=ids.pool_id, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pools")
    name = models.SlugField(max_length=63)
    accelerator = models.CharField(max_length=40, default="cpu")
    nodes = models.PositiveIntegerField(default=1)
    spare_nodes = models.PositiveIntegerField(default=0, db_default=0)
    slots_per_node = models.PositiveIntegerField()
    memory_bytes = models.BigIntegerField()
    accelerator_memory_bytes = models.BigIntegerField(null=True, blank=True)
    price_per_slot_hour = models.DecimalField(max_digits=12, decimal_places=4, default=0)
    currency = models.CharField(max_length=3, default="USD")

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["cluster", "name"], name="pool_name_is_unique_in_its_cluster"),
            models.CheckConstraint(
                condition=models.Q(spare_nodes=0) | models.Q(spare_nodes__lt=models.F("nodes")),
                name="pool_has_a_node_that_is_not_spare",
                violation_error_message="spare_nodes must be less than nodes: jobs run on the other nodes.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}"

    @property
    def slots(self) -> int:
        """Return the number of slots of all nodes."""
        return self.nodes * self.slots_per_node

    @property
    def spare_slots(self) -> int:
        """Return the number of slots of the spare nodes, which are part of `slots`."""
        return self.spare_nodes * self.slots_per_node


class InventorySync(LeasedModel):
    """When a cluster's health check and inventory sync last ran.

    It has its own lease, so that a slow inventory does not delay the observation of attempts. `problem` is why the last
    inventory sync failed; empty if it succeeded, or if the backend does not list nodes.
    """

    cluster = models.OneToOneField(Cluster, primary_key=True, on_delete=models.CASCADE, related_name="inventory_sync")
    probed_at = models.DateTimeField(null=True)
    nodes_at = models.DateTimeField(null=True)
    problem = models.TextField(blank=True, default="")

    class Meta:
        db_table = "clusters_survey"

    def __str__(self) -> str:
        return f"inventory sync of {self.cluster_id}"


class ClusterHealthCheck(models.Model):
    """The result of health checks from `began_at` until `seen_at`. A new row is written when the result changes."""

    id = models.CharField(primary_key=True, max_length=40, default=ids.probe_id, editable=False)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="health_checks")
    began_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    usable = models.BooleanField()
    version = models.CharField(max_length=200, blank=True, default="")
    facts = models.JSONField(default=dict)
    findings = models.JSONField(default=list)  # check, level, detail, remedy

    class Meta:
        db_table = "clusters_clusterprobe"
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["cluster", "-id"], name="probes_of_a_cluster")]

    def __str__(self) -> str:
        return f"health check of {self.cluster_id} at {self.seen_at}"


def _states() -> list[tuple[str, str]]:
    return [(state.value, state.value) for state in NodeState]


class Node(models.Model):
    """A node of a cluster as its backend last reported it (backends/facts.py), and its quarantine.

    `listed` is False if the last inventory did not include it. While `quarantined_at` is set, no new attempt runs
    there, whatever its state in the cluster. `released_at` is when the last quarantine ended. A node that is known only
    from an incident has no facts.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    name = models.CharField(max_length=253)
    state = models.CharField(max_length=10, choices=_states(), default=NodeState.UNKNOWN.value)
    reason = models.TextField(blank=True, default="")
    pools = models.JSONField(default=list)
    accelerator = models.CharField(max_length=100, blank=True, default="")
    slots = models.PositiveIntegerField(default=0)
    slots_used = models.PositiveIntegerField(default=0)
    cpus = models.PositiveIntegerField(default=0)
    memory_bytes = models.BigIntegerField(default=0)
    accelerator_memory_bytes = models.BigIntegerField(default=0, db_default=0)
    topology = models.JSONField(default=list)
    labels = models.JSONField(default=dict)
    listed = models.BooleanField(default=False)
    seen_at = models.DateTimeField(null=True)
    quarantined_at = models.DateTimeField(null=True)
    quarantined_by = models.CharField(max_length=150, blank=True, default="")
    quarantine_reason = models.TextField(blank=True, default="")
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["cluster", "name"], name="node_name_is_unique_in_its_cluster")
        ]

    def __str__(self) -> str:
        return self.name


class NodeIncident(models.Model):
    """Something that happened to a node. `job_id` and `attempt_id` name the affected attempt, if any.

    They are ids and not foreign keys, because the row belongs to no team and outlives the job. `kind` is the reason of
    an attempt's end, or `hang` of one that continued, an action (`quarantined`, `drained`, ...) or an observed state
    (`down`, `ready`).
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="incidents")
    kind = models.CharField(max_length=30)
    time = models.DateTimeField()
    detail = models.TextField(blank=True, default="")
    actor = models.CharField(max_length=150, blank=True, default="")
    job_id = models.CharField(max_length=40, blank=True, default="")
    attempt_id = models.CharField(max_length=40, blank=True, default="")

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["node", "-time"], name="incidents_of_a_node"),
            models.Index(fields=["time"], name="incidents_by_age"),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["node", "attempt_id", "kind"],
                condition=~models.Q(attempt_id=""),
                name="one_incident_of_a_kind_per_attempt",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.node_id} at {self.time}"


class NodePreflight(LeasedModel):
    """A preflight of one node, outside any job (dispatch/node_preflights.py).

    `cause`: why it was started, `actor`: by whom, empty for the platform. `submitted_at` is None until its cluster has
    it. `outcome` is empty until it has ended: the result of its report; `failed` without a report; `stopped` because
    a job needed the slots. `detail` explains the last two. `report`: a `trainer.contract.preflight.PreflightReport`.
    """

    class Cause(models.TextChoices):
        """Why a preflight was started."""

        INCIDENT = "incident"
        INTERVAL = "interval"
        MANUAL = "manual"

    class Outcome(models.TextChoices):
        """How a preflight ended."""

        OK = "ok"
        SLOW = "slow"
        BROKEN = "broken"
        FAILED = "failed"
        STOPPED = "stopped"

    id = models.CharField(primary_key=True, max_length=40, default=ids.node_preflight_id, editable=False)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="preflights")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")
    cause = models.CharField(max_length=10, choices=Cause.choices)
    actor = models.CharField(max_length=150, blank=True, default="")
    backend_name = models.CharField(max_length=80, unique=True)
    backend_id = models.CharField(max_length=200, blank=True, default="")
    outcome = models.CharField(max_length=10, choices=Outcome.choices, blank=True, default="")
    detail = models.TextField(blank=True, default="")
    report = models.JSONField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    submitted_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(
                fields=["node"], condition=models.Q(ended_at__isnull=True), name="one_live_preflight_per_node"
            )
        ]
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["node", "-created_at"], name="preflights_of_a_node"),
            models.Index(fields=["created_at"], name="preflights_by_age"),
        ]

    def __str__(self) -> str:
        return f"preflight of {self.node_id} at {self.created_at}"
