"""Serializers of preflights."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from athanor.clusters.models import NodePreflight
from trainer.contract.preflight import PreflightReport

UNITS = ["flop_per_second", "bytes_per_second", "seconds"]


class PreflightMeasureSerializer(serializers.Serializer[Any]):
    """One figure of all ranks, nodes or pairs that have it."""

    name = serializers.CharField(help_text="What was measured.")
    unit = serializers.ChoiceField(choices=UNITS, help_text="Unit of the values.")
    count = serializers.IntegerField(help_text="Number of ranks, nodes or pairs.")
    median = serializers.FloatField(help_text="Median value.")
    lowest = serializers.FloatField(help_text="Lowest value.")
    lowest_at = serializers.CharField(help_text="Node and rank of the lowest value; of a pair, both.")
    highest = serializers.FloatField(help_text="Highest value.")
    expected = serializers.FloatField(
        allow_null=True, help_text="Peak of such a device in its data sheet; null if it is not known."
    )


class PreflightCollectiveSerializer(serializers.Serializer[Any]):
    """A collective of all ranks."""

    name = serializers.CharField(help_text="`all_reduce`, `all_gather` or `all_to_all`.")
    bytes = serializers.IntegerField(help_text="Size, as nccl-tests counts it, in bytes.")
    seconds = serializers.FloatField(help_text="Mean time on the slowest rank, in seconds.")
    bus_bytes_per_second = serializers.FloatField(help_text="Bus bandwidth, as nccl-tests defines it.")
    expected = serializers.FloatField(
        allow_null=True, help_text="Published bus bandwidth of such a machine; null if it is not known."
    )


class PreflightFindingSerializer(serializers.Serializer[Any]):
    """Something slow or broken."""

    severity = serializers.ChoiceField(choices=["slow", "broken"], help_text="`slow` or `broken`.")
    nodes = serializers.ListField(
        child=serializers.CharField(), help_text="Nodes at fault. Empty for a link, or if it cannot be attributed."
    )
    because = serializers.CharField(help_text="What was found, with the figures.")
    measure = serializers.CharField(
        allow_blank=True, help_text="Name of the measure that shows it. Empty in reports of earlier versions."
    )


class PreflightReportSerializer(serializers.Serializer[Any]):
    """What was measured, and what is wrong."""

    result = serializers.ChoiceField(choices=["ok", "slow", "broken"], help_text="The worst finding.")
    ranks = serializers.IntegerField(help_text="Number of ranks.")
    nodes = serializers.IntegerField(help_text="Number of nodes.")
    device = serializers.CharField(help_text="Name of the devices.")
    seconds = serializers.FloatField(help_text="How long it took, in seconds.")
    measures = PreflightMeasureSerializer(many=True, help_text="Figures of devices, disks, the store and the network.")
    collectives = PreflightCollectiveSerializer(many=True, help_text="Collectives by size.")
    findings = PreflightFindingSerializer(many=True, help_text="What is slow or broken, broken first.")
    skipped = serializers.ListField(
        child=serializers.CharField(), help_text="What was not measured, each with the reason."
    )


class PreflightSerializer(PreflightReportSerializer):
    """What was measured before the first step of an attempt."""

    attempt = serializers.IntegerField(help_text="Number of the attempt.")
    time = serializers.DateTimeField(help_text="When it was completed.")


class NodePreflightSerializer(serializers.Serializer[NodePreflight]):
    """A preflight of a node, outside any job."""

    id = serializers.CharField()
    cause = serializers.ChoiceField(
        choices=NodePreflight.Cause.choices,
        help_text="Why it was started: an `incident` of the node, the `interval` of its cluster, or `manual`.",
    )
    actor = serializers.CharField(
        allow_blank=True, help_text="Username of the person who started it. Empty for the platform."
    )
    outcome = serializers.ChoiceField(
        choices=NodePreflight.Outcome.choices,
        allow_blank=True,
        help_text="The worst finding: `ok`, `slow` or `broken`; `failed` without a report; `stopped` because a job "
        "needed the slots. Empty until it has ended.",
    )
    detail = serializers.CharField(allow_blank=True, help_text="Why it failed or was stopped. May be empty.")
    pool = serializers.CharField(source="pool.name", help_text="Pool of the slots that it used.")
    created_at = serializers.DateTimeField()
    submitted_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was submitted to the cluster, ISO 8601 in UTC. Null before."
    )
    ended_at = serializers.DateTimeField(allow_null=True, help_text="Time of its end, ISO 8601 in UTC. Null before.")
    report = serializers.SerializerMethodField(help_text="What was measured. Null without a report.")

    @extend_schema_field(PreflightReportSerializer(allow_null=True))
    def get_report(self, row: NodePreflight) -> Any:
        """Return the report, None without one."""
        if row.report is None:
            return None
        return PreflightReportSerializer(PreflightReport.model_validate(row.report)).data
