"""Serializers of tokens."""

from typing import Any

from rest_framework import serializers

from athanor.accounts.models import ApiToken
from athanor.accounts.roles import Scope
from athanor.api.bodies import RequestSerializer

MAX_OVERLAP_SECONDS = 7 * 86_400
DEFAULT_OVERLAP_SECONDS = 3600


class TokenSerializer(serializers.Serializer[ApiToken]):
    """Metadata of a token."""

    id = serializers.CharField()
    name = serializers.CharField(help_text="Name that its owner gave it.")
    prefix = serializers.CharField(help_text="First 12 characters of the token, to recognise it.")
    team = serializers.CharField(source="team.name", help_text="Name of the team that the token is for.")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=[scope.value for scope in Scope]),
        help_text=(
            "What the token may do, within its user's roles. `platform` is deprecated and stands for all "
            "scopes that begin with `platform:`."
        ),
    )
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(
        allow_null=True, help_text="Time from which it no longer works, ISO 8601 in UTC. Null: it does not expire."
    )
    last_used_at = serializers.DateTimeField(
        allow_null=True,
        help_text=(
            "Time of a recent use, ISO 8601 in UTC; it is not updated by every request. Null if it was never used."
        ),
    )
    revoked_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was revoked, ISO 8601 in UTC. Null if it was not."
    )
    parent = serializers.CharField(  # type: ignore[assignment] # a field, which DRF takes off the class
        source="parent_id",
        allow_null=True,
        help_text=(
            "Id of the token that created this one; revoking it revokes this one too. Null if a person created it."
        ),
    )


class NewTokenSerializer(TokenSerializer):
    """A new token with its metadata."""

    token = serializers.CharField(help_text="The token. It is shown only here.")


class ScopedSerializer(RequestSerializer):
    """A token to create."""

    name = serializers.CharField(max_length=100, help_text="Name by which to recognise the token.")
    expires_in_days = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=3650,
        help_text=(
            "Lifetime in days, at most ATHANOR_TOKEN_MAX_DAYS (365 unless it is configured). Without it, "
            "or null, the longest lifetime."
        ),
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=[scope.value for scope in Scope]),
        required=False,
        allow_empty=False,
        help_text=(
            "What the token may do. Without it: `read`, `submit`, `artifacts` and `admin`. A token may "
            "request only scopes that it has."
        ),
    )


class RevokedSerializer(serializers.Serializer[Any]):
    """Result of revoking tokens."""

    revoked = serializers.IntegerField(min_value=0, help_text="Number of revoked tokens that were valid.")


class TokenRequestSerializer(ScopedSerializer):
    """A token to create for one team."""

    team = serializers.CharField(
        required=False, help_text="Name or id of the team. May be left out if you belong to one team only."
    )


class TokenRotationSerializer(RequestSerializer):
    """How long the old token continues to work."""

    overlap_seconds = serializers.IntegerField(
        default=DEFAULT_OVERLAP_SECONDS,
        min_value=0,
        max_value=MAX_OVERLAP_SECONDS,
        help_text="Seconds for which the old token continues to work.",
    )
