"""Serializers of where a job's time went."""

from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import enum_values
from athanor.jobs.timeline import OF_WALL_TIME, Totals


class TimingsSerializer(serializers.Serializer[Any]):
    """Where time went, in seconds. `total_seconds` is the sum of all others, `startup_seconds` that of `startup`."""

    total_seconds = serializers.FloatField(help_text="All of it. Of a job: from its submission to its end, or to now.")
    queued_seconds = serializers.FloatField(
        help_text="Waiting for admission, for a retry, or in the queue of the cluster."
    )
    startup_seconds = serializers.FloatField(help_text="From admission to the end of the first step, with restarts.")
    startup = serializers.DictField(
        child=serializers.FloatField(),
        help_text=(
            "`startup_seconds` by phase, such as `dispatch`, `launch`, `import` or `first_step`. Of phases at the same "
            "time the one that began last counts; what no phase covers is `launch`."
        ),
    )
    training_seconds = serializers.FloatField(help_text="Training whose result was kept.")
    preparing_seconds = serializers.FloatField(help_text="Preparing data, in a job that does nothing else.")
    evaluation_seconds = serializers.FloatField(help_text="Evaluations, samples included; training waits for them.")
    checkpoint_seconds = serializers.FloatField(
        help_text="Checkpoints, as long as training waited for them. A checkpoint is written while training continues."
    )
    export_seconds = serializers.FloatField(help_text="Exporting the model.")
    finishing_seconds = serializers.FloatField(
        help_text="From the request to stop, or the last result, to the confirmed end, except for what is named above."
    )
    paused_seconds = serializers.FloatField(help_text="Paused by a user.")
    stalled_seconds = serializers.FloatField(
        help_text="Without progress, as reported by `progress.stalled`: a hang, until its processes ended."
    )
    lost_seconds = serializers.FloatField(
        help_text=(
            "Work that was repeated, because it lies after the checkpoint that the next processes resumed from; if "
            "none have resumed, since the newest checkpoint."
        )
    )
    unattributed_seconds = serializers.FloatField(
        help_text="Not known: from when on work was lost, where the checkpoint that was resumed from is in no event."
    )


class SpanSerializer(serializers.Serializer[Any]):
    """A part of a job's time."""

    start = serializers.DateTimeField(help_text="Its beginning, ISO 8601 in UTC.")
    end = serializers.DateTimeField(help_text="Its end, ISO 8601 in UTC: the start of the next one.")
    activity = serializers.ChoiceField(choices=enum_values(OF_WALL_TIME), help_text="What the time was spent on.")
    phase = serializers.CharField(
        allow_blank=True, help_text="Phase of a start-up; `cluster` while it is queued there. Otherwise empty."
    )
    attempt = serializers.IntegerField(
        allow_null=True, help_text="Number of the attempt. Null while the job had none, as in the queue."
    )


class AttemptTimingsSerializer(serializers.Serializer[Any]):
    """Where the time of one attempt went."""

    attempt = serializers.IntegerField(help_text="Number of the attempt, from 1.")
    timings = TimingsSerializer(help_text="Where its time went.")


class TimelineSerializer(serializers.Serializer[Any]):
    """Where the time of a job went, from its submission to its end or to now."""

    spans = SpanSerializer(
        many=True,
        help_text="All of the time, in order and without gaps. Of more than 400 spans the shortest join a neighbour.",
    )
    timings = TimingsSerializer(help_text="Sums over all of the time.")
    attempts = AttemptTimingsSerializer(many=True, help_text="Sums by attempt, in order.")


def serialize_totals(totals: Totals) -> dict[str, Any]:
    """Return totals as TimingsSerializer describes them."""
    return {
        "total_seconds": totals.total.total_seconds(),
        **{f"{activity}_seconds": spent.total_seconds() for activity, spent in totals.activities.items()},
        "startup": {phase: spent.total_seconds() for phase, spent in totals.startup.items()},
    }
