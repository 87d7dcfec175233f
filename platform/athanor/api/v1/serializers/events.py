"""Serializers of pages of events."""

from rest_framework import serializers

from athanor.api.v1.serializers.common import build_serializer
from athanor.api.v1.serializers.jobs import EventSerializer

EVENT_PAGE = build_serializer(
    "EventPage",
    "Events of a job, in order.",
    {
        "items": EventSerializer(many=True, help_text="Events in order."),
        "next_after": serializers.IntegerField(
            help_text="Send it as `after` for the next page: the `seq` of the last event."
        ),
    },
)

TEAM_EVENT_PAGE = build_serializer(
    "TeamEventPage",
    "Events of teams, in the order in which they were committed.",
    {
        "items": EventSerializer(many=True, help_text="Events in order."),
        "next_after": serializers.CharField(help_text="Send it as `after` for the next page."),
    },
)
