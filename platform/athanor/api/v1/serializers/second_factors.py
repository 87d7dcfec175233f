"""Serializers of the caller's second factors."""

from typing import Any

from allauth.mfa.models import Authenticator
from rest_framework import serializers

from athanor.api.v1.serializers.account import MAX_PASSWORD_LENGTH


class PasswordConfirmationSerializer(serializers.Serializer[Any]):
    """The current password, which changes of second factors require."""

    current_password = serializers.CharField(
        max_length=MAX_PASSWORD_LENGTH, trim_whitespace=False, help_text="Current password."
    )


class AppSetupSerializer(serializers.Serializer[Any]):
    """What an authenticator app needs. It is shown only here."""

    secret = serializers.CharField(help_text="The secret in Base32, for apps that cannot scan a QR code.")
    uri = serializers.CharField(help_text="The secret as an `otpauth://totp/` URI.")
    qr_svg = serializers.CharField(help_text="The URI as a QR code, an SVG document.")


class AppCodeSerializer(serializers.Serializer[Any]):
    """A code of the authenticator app."""

    code = serializers.CharField(max_length=50, help_text="The code that the app shows now.")


class NewRecoveryCodesSerializer(serializers.Serializer[Any]):
    """New recovery codes."""

    recovery_codes = serializers.ListField(
        child=serializers.CharField(),
        help_text=("New codes, each of which works once. They are shown only here. Empty if there were codes already."),
    )


class PasskeySerializer(serializers.Serializer[Authenticator]):
    """A passkey of the user."""

    id = serializers.CharField(source="pk")
    name = serializers.CharField(source="data.name", help_text="Name by which to recognise it.")
    created_at = serializers.DateTimeField()
    last_used_at = serializers.DateTimeField(
        allow_null=True, help_text="Time of the last sign-in with it, ISO 8601 in UTC. Null if it was never used."
    )


class NewPasskeySerializer(serializers.Serializer[Any]):
    """A passkey to add."""

    name = serializers.CharField(max_length=100, help_text="Name by which to recognise it.")
    credential = serializers.DictField(
        help_text=(
            "The PublicKeyCredential that `navigator.credentials.create` returned, as JSON with base64url values."
        )
    )


class PasskeyNameSerializer(serializers.Serializer[Any]):
    """A name of a passkey."""

    name = serializers.CharField(max_length=100, help_text="Name by which to recognise it.")


class AddedPasskeySerializer(NewRecoveryCodesSerializer):
    """The new passkey, and recovery codes if there were none."""

    passkey = PasskeySerializer(help_text="The new passkey.")


class SecondFactorsSerializer(serializers.Serializer[Any]):
    """The second factors of the user."""

    has_password = serializers.BooleanField(
        help_text=(
            "Whether the user has a password. Second factors need one; users with single sign-on only have none."
        )
    )
    authenticator_app_since = serializers.DateTimeField(
        allow_null=True, help_text="Time at which the authenticator app was added, ISO 8601 in UTC. Null without one."
    )
    recovery_codes_left = serializers.IntegerField(
        allow_null=True, help_text="Number of unused recovery codes. Null without codes."
    )
    passkeys = PasskeySerializer(many=True, help_text="The user's passkeys.")
    passkeys_available = serializers.BooleanField(
        help_text="Whether browsers allow passkeys for the platform's address."
    )
