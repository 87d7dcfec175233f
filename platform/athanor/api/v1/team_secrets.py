"""/teams/{id}/secrets: set and delete secrets. No response contains a value."""

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import check, get_principal, team_for
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.team_secrets import NewSecretSerializer, SecretChangesSerializer, SecretSerializer
from athanor.artifacts import team_secrets


class SecretsView(APIView):
    """Requests to `/teams/{team_id}/secrets`."""

    @extend_schema(
        operation_id="secrets_list", responses={200: page_serializer("SecretPage", SecretSerializer), **PROBLEMS}
    )
    def get(self, request: Request, team_id: str) -> Response:
        """List the secrets of a team.

        Returns names and destinations. No response contains a value."""
        team = team_for(get_principal(request), Permission.VIEW, team_id)
        return paginated_response(serialize_many(SecretSerializer, team_secrets.secrets_of(team)))

    @extend_schema(
        operation_id="secrets_put",
        parameters=IDEMPOTENT,
        request=NewSecretSerializer,
        responses={
            200: OpenApiResponse(SecretSerializer, description="The secret, which has a new value."),
            201: OpenApiResponse(SecretSerializer, description="The new secret."),
            **PROBLEMS,
        },
    )
    def post(self, request: Request, team_id: str) -> Response:
        """Set a secret.

        Creates a secret (201), or replaces the value of the one with this name (200). Jobs name secrets in
        `secrets`; running attempts keep the value that they were given. MLflow credentials are sent only to servers
        whose origin is in `destinations`. For administrators of the team."""
        principal = get_principal(request)
        team = team_for(principal, Permission.MANAGE, team_id)
        asked = parse_body(request, NewSecretSerializer)

        def make() -> Response:
            row, created = team_secrets.put(
                team, asked["name"], asked["value"], principal.user, asked.get("destinations")
            )
            return Response(SecretSerializer(row).data, status=201 if created else 200)

        return run_idempotently(request, make)


class SecretView(APIView):
    """Requests to `/secrets/{secret_id}`."""

    @extend_schema(
        operation_id="secrets_change", request=SecretChangesSerializer, responses={200: SecretSerializer, **PROBLEMS}
    )
    def patch(self, request: Request, secret_id: str) -> Response:
        """Change the destinations of a secret.

        Replaces the destinations; the value stays. For administrators of the team."""
        principal = get_principal(request)
        row = team_secrets.secret_of(principal, secret_id)
        check(principal, Permission.MANAGE, row.team_id)
        asked = parse_body(request, SecretChangesSerializer)
        return Response(
            SecretSerializer(team_secrets.set_destinations(row, asked["destinations"], principal.user)).data
        )

    @extend_schema(operation_id="secrets_delete", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, secret_id: str) -> Response:
        """Delete a secret.

        Deletes the value. Running attempts keep it; attempts that start later run without it. For administrators of
        the team."""
        principal = get_principal(request)
        row = team_secrets.secret_of(principal, secret_id)
        check(principal, Permission.MANAGE, row.team_id)
        team_secrets.delete(row, principal.user)
        return Response(status=204)
