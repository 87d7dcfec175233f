"""Serializers of the quota tree, its previews and its use."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import NamedSerializer
from athanor.quotas import usage
from athanor.quotas.models import AdmissionSettings
from athanor.scheduling import quota_history, quota_preview

DAY = 86_400


class QuotaGrantSerializer(serializers.Serializer[Any]):
    """Slots of one accelerator that a node has of its own."""

    accelerator = serializers.CharField(help_text="The accelerator, or `cpu`.")
    nominal = serializers.IntegerField(help_text="Slots of the node's own.")
    borrow_limit = serializers.IntegerField(
        allow_null=True, help_text="Maximum number of slots beyond its own that the subtree may use. Null: no limit."
    )
    lend_limit = serializers.IntegerField(
        allow_null=True, help_text="Maximum number of slots of its own that others may use. Null: all."
    )


class ShareSerializer(serializers.Serializer[usage.Share]):
    """Quota and use of one accelerator in a node's subtree."""

    accelerator = serializers.CharField(help_text="The accelerator, or `cpu`.")
    governed = serializers.BooleanField(
        help_text="Whether any node of the tree has a grant of it. If not, only pools limit its use."
    )
    nominal = serializers.IntegerField(help_text="Slots that the whole subtree has of its own.")
    used = serializers.IntegerField(help_text="Slots that jobs of the subtree hold now.")
    borrowed = serializers.IntegerField(help_text="How many of those exceed its own.")
    lent = serializers.IntegerField(help_text="How many of its own others use.")
    available = serializers.IntegerField(
        allow_null=True, help_text="Slots that it could use in addition now. Null if it has no quota."
    )
    teams = serializers.IntegerField(help_text="Number of teams of the subtree that hold some.")


class QuotaNodeSerializer(serializers.Serializer[Any]):
    """A node of the quota tree with its limits and use. Limits apply to the subtree."""

    id = serializers.CharField()
    kind = serializers.ChoiceField(
        choices=["organisation", "group", "team"], help_text="`organisation` (the root), `group` or `team` (a leaf)."
    )
    name = serializers.CharField(help_text="Name, unique below its parent.")
    path = serializers.CharField(
        help_text=("Names down to the node, joined by `/`, such as `research/vision`. The root's path is its name.")
    )
    parent = serializers.CharField(  # type: ignore[assignment] # a field, which DRF takes off the class
        allow_null=True, help_text="Id of its parent. Null for the root."
    )
    depth = serializers.IntegerField(help_text="Number of nodes above it.")
    team = serializers.SerializerMethodField(help_text="Team of a leaf. Null for others.")
    weight = serializers.FloatField(help_text="Weight against its siblings in fair-share ranking.")
    max_running_jobs = serializers.IntegerField(
        allow_null=True,
        help_text="Maximum number of jobs of the subtree that may hold slots at the same time. Null: no limit.",
    )
    max_queued_jobs = serializers.IntegerField(
        allow_null=True,
        help_text="Maximum number of jobs of the subtree that may wait at the same time. Null: no limit.",
    )
    max_slots = serializers.IntegerField(
        allow_null=True,
        help_text="Maximum number of slots that jobs of the subtree may hold at the same time. Null: no limit.",
    )
    max_slots_per_job = serializers.IntegerField(
        allow_null=True, help_text="Maximum number of slots of one job. Null: no limit."
    )
    max_run_seconds = serializers.IntegerField(
        allow_null=True, help_text="Maximum `time_limit_seconds` of a job. Null: no limit."
    )
    max_storage_bytes = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Maximum number of bytes that the subtree may store before new data and jobs are refused. Null: no limit."
        ),
    )
    idle_warning_seconds = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Time without progress after which a running job of the subtree gets the event `job.idle`, in seconds. "
            "Null: no warning."
        ),
    )
    idle_pause_seconds = serializers.IntegerField(
        allow_null=True,
        help_text=(
            "Time without progress after which a running job of the subtree is paused at a checkpoint, in seconds. "
            "Null: it is not paused."
        ),
    )
    grants = QuotaGrantSerializer(many=True, help_text="Slots of its own, by accelerator.")
    shares = ShareSerializer(many=True, help_text="Quota and use of its subtree, by accelerator.")
    running_jobs = serializers.IntegerField(help_text="Jobs of the subtree that hold slots.")
    queued_jobs = serializers.IntegerField(help_text="Jobs of the subtree that wait.")
    slots_used = serializers.IntegerField(help_text="Slots that jobs of the subtree hold, of all accelerators.")

    @extend_schema_field(NamedSerializer(allow_null=True))
    def get_team(self, node: dict[str, Any]) -> dict[str, str] | None:
        """Return the team of a leaf, None for other nodes."""
        return node["team"]  # type: ignore[no-any-return] # made by `_serialize_node`


class QuotasSerializer(serializers.Serializer[Any]):
    """The quota tree as the caller sees it."""

    version = serializers.IntegerField(help_text="Version of the tree. It grows with each change.")
    whole = serializers.BooleanField(
        help_text="Whether all nodes are listed. If not, only the paths of your teams are."
    )
    may_change = serializers.BooleanField(help_text="Whether you may change the tree.")
    nodes = QuotaNodeSerializer(many=True, help_text="Nodes, parents before children.")


class AdmissionSettingsSerializer(RequestSerializer, serializers.ModelSerializer[AdmissionSettings]):
    """How admission orders and preempts jobs."""

    half_life_seconds = serializers.IntegerField(
        min_value=60, max_value=365 * DAY, help_text="Half-life of past usage in fair-share ranking, in seconds."
    )
    age_step_seconds = serializers.IntegerField(
        min_value=0,
        max_value=365 * DAY,
        help_text=(
            "Waiting time in seconds that counts as one priority class. 0: waiting does not raise the priority."
        ),
    )
    protected_seconds = serializers.IntegerField(
        min_value=0,
        max_value=30 * DAY,
        help_text=(
            "Minimum run time in seconds before a job can be preempted. It doubles with each preemption of the job."
        ),
    )

    class Meta:
        """The model and its fields."""

        model = AdmissionSettings
        fields = ("fair_share", "half_life_seconds", "age_step_seconds", "backfill", "preempt", "protected_seconds")
        extra_kwargs: ClassVar[dict[str, dict[str, str]]] = {
            "fair_share": {"help_text": "Whether teams are ranked by their share of past and present usage."},
            "backfill": {"help_text": "Whether a job may start before an earlier one that it does not delay."},
            "preempt": {"help_text": "Whether running jobs may be asked to checkpoint and wait for others."},
        }


class OverSerializer(serializers.Serializer[quota_preview.Overuse]):
    """A node that uses more than it would be allowed to."""

    node = serializers.CharField(help_text="Path of the node.")
    what = serializers.CharField(help_text="An accelerator, or the name of a limit.")
    used = serializers.IntegerField(help_text="What is used: slots, jobs or bytes.")
    allowed = serializers.IntegerField(help_text="What would be allowed, in the same unit.")
    detail = serializers.CharField(help_text="The same as a sentence.")


class TouchedJobSerializer(serializers.Serializer[quota_preview.AffectedJob]):
    """A job that a change would affect."""

    id = serializers.CharField(help_text="Id of the job.")
    team = serializers.CharField(help_text="Name of its team.")
    slots = serializers.IntegerField(help_text="Number of its slots.")
    accelerator = serializers.CharField(help_text="Accelerator of its pool.")
    why = serializers.CharField(allow_blank=True, help_text="Reason, in words. May be empty.")


class QuotaPreviewSerializer(serializers.Serializer[quota_preview.Preview]):
    """What a change of the quota tree would do now."""

    version = serializers.IntegerField(help_text="Version of the tree that the preview started from.")
    differences = serializers.ListField(
        child=serializers.CharField(), help_text="What would change in the tree, a line each."
    )
    over = OverSerializer(
        many=True, help_text="Nodes that use more than would be allowed. What runs continues; nothing new starts there."
    )
    preempted = TouchedJobSerializer(
        many=True, help_text="Jobs that would be asked to checkpoint and wait, at most 100."
    )
    started = TouchedJobSerializer(many=True, help_text="Waiting jobs that would start now, at most 100.")
    not_started = TouchedJobSerializer(
        many=True, help_text="Jobs that are about to start and would wait instead, at most 100."
    )
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="What is allowed but perhaps not intended, a sentence each."
    )


class QuotaLineSerializer(serializers.Serializer[quota_history.Line]):
    """Use of one accelerator by day."""

    accelerator = serializers.CharField(help_text="The accelerator, or `cpu`.")
    used = serializers.ListField(
        child=serializers.FloatField(), help_text="Average number of slots held, for each of `days`."
    )
    nominal = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="Slots that the subtree had of its own at the end of each of `days`; for today, now.",
    )


class QuotaHistorySerializer(serializers.Serializer[quota_history.History]):
    """Use of a node's subtree by day."""

    id = serializers.CharField(source="node_id", help_text="Id of the node.")
    storage_bytes = serializers.IntegerField(help_text="Bytes that the subtree's teams store now.")
    unreferenced_bytes = serializers.IntegerField(
        help_text=(
            "Part of `storage_bytes` in objects that belong to no checkpoint, artifact or data set. They "
            "are deleted a day after their attempt."
        )
    )
    lines = QuotaLineSerializer(many=True, help_text="Use by accelerator.")


class QuotaUsageSerializer(serializers.Serializer[Any]):
    """Use of quotas by day."""

    days = serializers.ListField(
        child=serializers.DateField(), help_text="Days in UTC. Today, which is not over, is last."
    )
    nodes = QuotaHistorySerializer(many=True, help_text="The nodes that you can see.")
