"""Serializers of signing in."""

from typing import Any

from rest_framework import serializers

from athanor.accounts import second_factors
from athanor.accounts.models import Membership, User
from athanor.accounts.roles import PlatformRole
from athanor.api.bodies import RequestSerializer


class UserSerializer(serializers.Serializer[User]):
    """The signed-in user."""

    id = serializers.CharField()
    username = serializers.CharField(help_text="Username.")
    email = serializers.CharField(allow_blank=True, help_text="Email address. Empty if none is known.")
    is_staff = serializers.BooleanField(help_text="Whether the user may open the admin site.")
    platform_role = serializers.ChoiceField(
        choices=[role.value for role in PlatformRole],
        help_text=(
            "Role on the whole platform: `none`, `auditor` (sees every team's queue, quotas, budgets, "
            "costs and the audit trail) or `platform_admin`."
        ),
    )


class TeamRoleSerializer(serializers.Serializer[Membership]):
    """A team of the user, with their role in it."""

    id = serializers.CharField(source="team.id", help_text="Id of the team.")
    name = serializers.CharField(source="team.name", help_text="Name of the team.")
    role = serializers.CharField(help_text="The user's role in the team: `viewer`, `member` or `admin`.")


class SignOnSerializer(serializers.Serializer[Any]):
    """The organisation's identity provider."""

    name = serializers.CharField(help_text="Name of the provider.")
    url = serializers.CharField(help_text="Path to POST to, with the CSRF token, to sign in at the provider.")


class PendingSecondFactorSerializer(serializers.Serializer[Any]):
    """A sign-in of this browser whose password was correct and that waits for its second factor."""

    kinds = serializers.ListField(
        child=serializers.ChoiceField(choices=second_factors.KINDS),
        help_text="Kinds of second factor that complete the sign-in.",
    )


class SessionSerializer(serializers.Serializer[Any]):
    """Who is signed in, and what the dashboard needs to send requests."""

    authenticated = serializers.BooleanField(help_text="Whether somebody is signed in.")
    user = UserSerializer(allow_null=True, help_text="The signed-in user. Null if nobody is.")
    teams = TeamRoleSerializer(many=True, help_text="Teams of the user, by name. Empty if nobody is signed in.")
    csrf_token = serializers.CharField(help_text="Value of `X-CSRFToken` for requests of this session.")
    sign_on = SignOnSerializer(
        allow_null=True, help_text="The organisation's identity provider. Null if none is configured."
    )
    second_factor = PendingSecondFactorSerializer(
        allow_null=True, help_text="The sign-in that waits for its second factor. Null if none does."
    )
    second_factor_setup_required = serializers.BooleanField(
        help_text=(
            "Whether the platform requires a second factor that the user does not have; until it is set "
            "up only the endpoints of the account respond."
        )
    )


class SecondFactorSerializer(serializers.Serializer[Any]):
    """A second factor: exactly one of the fields."""

    code = serializers.CharField(
        max_length=50, required=False, help_text="Code of the authenticator app, or a recovery code."
    )
    passkey = serializers.DictField(
        required=False,
        help_text=("The PublicKeyCredential that `navigator.credentials.get` returned, as JSON with base64url values."),
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require exactly one of the fields."""
        if len(attrs) != 1:
            raise serializers.ValidationError("give either code or passkey")
        return attrs


class PasskeyOptionsSerializer(serializers.Serializer[Any]):
    """Options of WebAuthn."""

    publicKey = serializers.DictField(help_text="Options of WebAuthn as JSON; binary values are base64url.")


class CredentialsSerializer(RequestSerializer):
    """A username and a password."""

    username = serializers.CharField(help_text="Username.")
    password = serializers.CharField(trim_whitespace=False, help_text="Password.")
