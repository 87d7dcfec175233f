"""Serializers of a team's signing keys."""

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.artifacts.models import SigningKey


class SigningKeySerializer(serializers.Serializer[SigningKey]):
    """A signing key without its private half."""

    id = serializers.CharField()
    state = serializers.ChoiceField(
        choices=SigningKey.State.choices,
        help_text=(
            "`active`: it signs; `retired`: a rotation replaced it, its signatures stay valid; or `revoked`: its "
            "signatures are refused."
        ),
    )
    fingerprint = serializers.CharField(
        help_text="SHA-256 of `public_key`, hexadecimal; `sha256sum` of the PEM file prints the same."
    )
    public_key = serializers.CharField(help_text="The public key (ECDSA P-256), as PEM.", trim_whitespace=False)
    created_at = serializers.DateTimeField()
    retired_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which a rotation replaced it, ISO 8601 in UTC. Null if none did."
    )
    revoked_at = serializers.DateTimeField(
        allow_null=True, help_text="Time at which it was revoked, ISO 8601 in UTC. Null if it is not."
    )
    revocation_reason = serializers.CharField(allow_blank=True, help_text="Why it was revoked. Empty if it is not.")
    revoked_by = serializers.CharField(
        source="revoked_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the person who revoked it. Null if it is not, or if the account is gone.",
    )


class RevocationSerializer(RequestSerializer):
    """Why a signing key is revoked."""

    reason = serializers.CharField(max_length=500, help_text="Reason, for others to read.")
