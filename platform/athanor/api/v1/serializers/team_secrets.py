"""Serializers of a team's secrets."""

from typing import Any

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.artifacts.models import TeamSecret

MAX_VALUE_LENGTH = 16_384
MAX_DESTINATIONS = 20


class SecretSerializer(serializers.Serializer[TeamSecret]):
    """A secret without its value."""

    id = serializers.CharField()
    name = serializers.CharField(help_text="Name within the team.")
    destinations = serializers.ListField(
        child=serializers.CharField(),
        help_text=(
            "Origins, `scheme://host[:port]`, of the servers that the platform's clients may send the value to."
        ),
    )
    updated_by = serializers.CharField(
        source="updated_by.username",
        allow_null=True,
        default=None,
        help_text=("Username of the person who last set the value or the destinations. Null if the account is gone."),
    )
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class DestinationsField(serializers.ListField):
    """Origins, `scheme://host[:port]`. The service checks them one by one, so that its messages name the entry."""

    child = serializers.CharField(max_length=300)

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=MAX_DESTINATIONS, **options)


class NewSecretSerializer(RequestSerializer):
    """A secret to set."""

    name = serializers.RegexField(
        r"^[a-z][a-z0-9-]*$", max_length=63, help_text="Name within the team: lower-case letters, digits and `-`."
    )
    value = serializers.CharField(
        max_length=MAX_VALUE_LENGTH,
        trim_whitespace=False,
        write_only=True,
        help_text="The value. No response contains it.",
    )
    destinations = DestinationsField(
        required=False,
        help_text=(
            "Origins, `scheme://host[:port]`, of the servers that the platform's clients may send the "
            "value to. Without it those of an existing secret stay, and a new one has none."
        ),
    )


class SecretChangesSerializer(RequestSerializer):
    """Changes of a secret, without its value."""

    destinations = DestinationsField(
        help_text=(
            "Origins, `scheme://host[:port]`. They replace the present ones; with an empty list the "
            "value is sent to no server."
        )
    )
