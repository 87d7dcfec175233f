"""Serializers of recorded admission decisions."""

from typing import Any

from rest_framework import serializers

from athanor.scheduling import estimates, stored_cycles
from athanor.scheduling.models import AdmissionCycle


class DecisionSerializer(serializers.Serializer[AdmissionCycle]):
    """An admission cycle."""

    id = serializers.IntegerField(help_text="Number of the admission cycle.")
    time = serializers.DateTimeField(help_text="Time of the cycle, ISO 8601 in UTC.")
    digest = serializers.CharField(help_text="SHA-256 of the recorded snapshot, hexadecimal.")
    considered = serializers.IntegerField(help_text="Number of waiting jobs that were considered.")
    admitted = serializers.ListField(child=serializers.CharField(), help_text="Ids of the jobs that were started.")
    preempted = serializers.ListField(
        child=serializers.CharField(), help_text="Ids of the jobs that were asked to checkpoint and wait."
    )
    took_seconds = serializers.FloatField(source="seconds", help_text="Duration in seconds.")


class WholeDecisionSerializer(DecisionSerializer):
    """An admission cycle with everything that it considered and decided."""

    snapshot = serializers.SerializerMethodField(
        help_text="Everything that was known: quota tree, pools, budgets, settings, holding and waiting jobs."
    )
    decisions = serializers.SerializerMethodField(help_text="What was decided for each waiting job.")

    def get_snapshot(self, cycle: AdmissionCycle) -> dict[str, Any]:
        """Return the stored snapshot as plain data."""
        return stored_cycles.stored(cycle)[0]

    def get_decisions(self, cycle: AdmissionCycle) -> list[dict[str, Any]]:
        """Return the stored decisions as plain data."""
        return stored_cycles.stored(cycle)[1]


class ReplaySerializer(serializers.Serializer[Any]):
    """Whether a recorded cycle would be decided the same way."""

    same = serializers.BooleanField(help_text="Whether the same was decided.")
    differing = serializers.ListField(
        child=serializers.CharField(), help_text="Ids of the jobs that were decided differently."
    )


class CalibrationSerializer(serializers.Serializer[estimates.Calibration]):
    """How good estimates of start times were."""

    judged = serializers.IntegerField(help_text="Number of estimates that were compared.")
    by_p50 = serializers.FloatField(
        allow_null=True,
        help_text=("Fraction of the jobs that had started by their P50; 0.5 is perfect. Null without an estimate."),
    )
    by_p90 = serializers.FloatField(
        allow_null=True,
        help_text=("Fraction of the jobs that had started by their P90; 0.9 is perfect. Null without an estimate."),
    )
    median_error_seconds = serializers.FloatField(
        allow_null=True,
        help_text="Median difference between the P50 and the start, in seconds. Null without an estimate.",
    )
