"""Serializers of a job's system series and the newest sample of each of its nodes."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from athanor.telemetry.models import NodeSample
from athanor.telemetry.system import Point
from trainer.contract.system import SYSTEM_SERIES

UNITS = ["fraction", "bytes", "celsius", "watts", "megahertz", "count"]


class SystemSeriesSerializer(serializers.Serializer[Any]):
    """A series over all nodes of the job, or all their GPUs: arrays of equal length, one entry for each interval."""

    name = serializers.CharField(help_text="Name of the series, such as `system/gpu_temperature`.")
    title = serializers.CharField(help_text="What it is, for people.")
    unit = serializers.ChoiceField(choices=UNITS, help_text="Unit of the values; `fraction` is from 0 to 1.")
    times = serializers.ListField(child=serializers.DateTimeField(), help_text="Starts of the intervals, ascending.")
    means = serializers.ListField(child=serializers.FloatField(), help_text="Mean of the samples of all nodes.")
    lowest = serializers.ListField(child=serializers.FloatField(), help_text="Lowest sample.")
    lowest_at = serializers.ListField(
        child=serializers.CharField(), help_text="Its node; NODE:NUMBER for a GPU or a thermal zone."
    )
    highest = serializers.ListField(child=serializers.FloatField(), help_text="Highest sample.")
    highest_at = serializers.ListField(
        child=serializers.CharField(), help_text="Its node; NODE:NUMBER for a GPU or a thermal zone."
    )


class NodeSampleSerializer(serializers.Serializer[Any]):
    """The newest sample of a node."""

    node = serializers.CharField(help_text="Name of the node.")
    time = serializers.DateTimeField(help_text="Time of the sample.")
    values = serializers.DictField(
        child=serializers.ListField(child=serializers.FloatField(allow_null=True)),
        help_text="By name of the series, one value for each GPU or thermal zone, else one; null if it was not read.",
    )


class SystemSerializer(serializers.Serializer[Any]):
    """Load and health of the machines that a job has run on."""

    interval_seconds = serializers.IntegerField(help_text="Length of an interval, in seconds.")
    series = SystemSeriesSerializer(many=True, help_text="Series with values, of all attempts.")
    nodes = NodeSampleSerializer(many=True, help_text="Nodes of the newest attempt with samples, by name.")


def serialize_system(interval_seconds: int, series: Mapping[str, list[Point]], nodes: list[NodeSample]) -> Any:
    """Return the response for these series and nodes."""
    rows = [
        {
            "name": name,
            "title": SYSTEM_SERIES[name].title,
            "unit": SYSTEM_SERIES[name].unit,
            "times": [point.time for point in points],
            "means": [point.mean for point in points],
            "lowest": [point.low for point in points],
            "lowest_at": [point.low_at for point in points],
            "highest": [point.high for point in points],
            "highest_at": [point.high_at for point in points],
        }
        for name, points in series.items()
    ]
    found = [{"node": node.node, "time": node.time, "values": node.values} for node in nodes]
    return SystemSerializer({"interval_seconds": interval_seconds, "series": rows, "nodes": found}).data
