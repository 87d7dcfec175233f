"""Serializers of the caller's password and sessions."""

from typing import Any

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer

MAX_PASSWORD_LENGTH = 200


class SignInSerializer(serializers.Serializer[Any]):
    """A session: a browser in which the user is signed in."""

    id = serializers.CharField()
    current = serializers.BooleanField(help_text="Whether it is the session of this request.")
    address = serializers.CharField(help_text="IP address from which it was started.")
    browser = serializers.CharField(help_text="The browser's User-Agent. May be empty.", allow_blank=True)
    created_at = serializers.DateTimeField()


class EndedSerializer(serializers.Serializer[Any]):
    """Result of ending sessions."""

    ended = serializers.IntegerField(help_text="Number of sessions that were ended.")


class PasswordChangeSerializer(RequestSerializer):
    """The current and the new password."""

    current_password = serializers.CharField(
        max_length=MAX_PASSWORD_LENGTH, trim_whitespace=False, help_text="Current password."
    )
    new_password = serializers.CharField(
        max_length=MAX_PASSWORD_LENGTH,
        trim_whitespace=False,
        help_text="New password. It must meet the platform's password rules.",
    )


class PasswordResetSerializer(RequestSerializer):
    """The token of a link, and the new password."""

    token = serializers.CharField(max_length=500, help_text="Token of the link: what follows the `#`.")
    new_password = serializers.CharField(
        max_length=MAX_PASSWORD_LENGTH,
        trim_whitespace=False,
        help_text="New password. It must meet the platform's password rules.",
    )
