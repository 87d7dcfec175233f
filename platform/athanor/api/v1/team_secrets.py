"""/teams/{id}/secrets: set and forgotten; no answer holds a value."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import check, principal, team_for
from athanor.api.bodies import RequestSerializer, read
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import listed, serialize_many
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.artifacts import team_secrets
from athanor.artifacts.models import TeamSecret

LONGEST_VALUE = 16_384
MOST_DESTINATIONS = 20


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
        super().__init__(max_length=MOST_DESTINATIONS, **options)


class NewSecretSerializer(RequestSerializer):
    """A secret to set."""

    name = serializers.RegexField(
        r"^[a-z][a-z0-9-]*$", max_length=63, help_text="Name within the team: lower-case letters, digits and `-`."
    )
    value = serializers.CharField(
        max_length=LONGEST_VALUE,
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


class SecretsView(APIView):
    @extend_schema(operation_id="secrets_list", responses={200: page_of("SecretPage", SecretSerializer), **PROBLEMS})
    def get(self, request: Request, team_id: str) -> Response:
        """List the secrets of a team.

        Returns names and destinations. No response contains a value."""
        team = team_for(principal(request), Permission.VIEW, team_id)
        return Response(listed(serialize_many(SecretSerializer, team_secrets.secrets_of(team))))

    @extend_schema(
        operation_id="secrets_put",
        parameters=IDEMPOTENT,
        request=NewSecretSerializer,
        responses={200: SecretSerializer, 201: SecretSerializer, **PROBLEMS},
    )
    def post(self, request: Request, team_id: str) -> Response:
        """Set a secret.

        Creates a secret (201), or replaces the value of the one with this name (200). Jobs name secrets in
        `secrets`; running attempts keep the value that they were given. MLflow credentials are sent only to servers
        whose origin is in `destinations`. For administrators of the team."""
        who = principal(request)
        team = team_for(who, Permission.MANAGE, team_id)
        asked = read(NewSecretSerializer, request)

        def make() -> Response:
            row, created = team_secrets.put(team, asked["name"], asked["value"], who.user, asked.get("destinations"))
            return Response(SecretSerializer(row).data, status=201 if created else 200)

        return once(request, make)


class SecretView(APIView):
    @extend_schema(
        operation_id="secrets_change", request=SecretChangesSerializer, responses={200: SecretSerializer, **PROBLEMS}
    )
    def patch(self, request: Request, secret_id: str) -> Response:
        """Change the destinations of a secret.

        Replaces the destinations; the value stays. For administrators of the team."""
        who = principal(request)
        row = team_secrets.secret_of(who, secret_id)
        check(who, Permission.MANAGE, row.team_id)
        asked = read(SecretChangesSerializer, request)
        return Response(SecretSerializer(team_secrets.set_destinations(row, asked["destinations"], who.user)).data)

    @extend_schema(operation_id="secrets_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, secret_id: str) -> Response:
        """Delete a secret.

        Deletes the value. Running attempts keep it; attempts that start later run without it. For administrators of
        the team."""
        who = principal(request)
        row = team_secrets.secret_of(who, secret_id)
        check(who, Permission.MANAGE, row.team_id)
        team_secrets.delete(row, who.user)
        return Response(status=204)
