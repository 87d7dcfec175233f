"""Serializers of log lines and of a cluster's output."""

from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import build_serializer


class LogLineSerializer(serializers.Serializer[Any]):
    """A line of a job's log."""

    cursor = serializers.IntegerField(
        help_text="Position in the job's log, ascending. Send it as `after` to read what follows."
    )
    time = serializers.DateTimeField(help_text="Time of the line, ISO 8601 in UTC.")
    attempt = serializers.IntegerField(help_text="Number of the attempt.")
    rank = serializers.IntegerField(help_text="Rank of the process that wrote the line; -1 is the agent of a node.")
    stream = serializers.CharField(help_text="`stdout`, `stderr` or `agent`.")
    text = serializers.CharField(allow_blank=True, help_text="The line, without its end.")


class OutputSerializer(serializers.Serializer[Any]):
    """A part of an attempt's output, as its cluster recorded it."""

    text = serializers.CharField(allow_blank=True, help_text="The output from the cursor on. May be empty.")
    cursor = serializers.CharField(allow_blank=True, help_text="Send it as `cursor` to read what follows.")


LOG_PAGE = build_serializer(
    "LogPage",
    "Lines of a job's log.",
    {
        "items": LogLineSerializer(many=True, help_text="Lines in order."),
        "next_after": serializers.IntegerField(
            help_text="Position up to which the log was searched. Send it as `after` for the next page."
        ),
        "next_before": serializers.IntegerField(
            allow_null=True,
            help_text="Send it as `before`, with `tail`, for the lines before these. Null if there are none, or "
            "without `tail`.",
        ),
    },
)
