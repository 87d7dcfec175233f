"""/tokens: the caller's tokens for pipelines and the command line; parts of those of service accounts."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import services
from athanor.accounts.models import ApiToken
from athanor.accounts.roles import DEFAULT_SCOPES, Permission, Scope, includes
from athanor.accounts.selectors import Principal, token_of, tokens_of
from athanor.api.access import get_principal, team_named
from athanor.api.bodies import parse_body
from athanor.api.idempotency import IDEMPOTENT, run_idempotently
from athanor.api.pagination import PAGE_PARAMETERS, paginate, paginated_response, serialize_many
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.tokens import (
    NewTokenSerializer,
    RevokedSerializer,
    TokenRequestSerializer,
    TokenRotationSerializer,
    TokenSerializer,
)
from athanor.core.errors import FieldProblem, Forbidden, Invalid


class TokensView(APIView):
    """Requests to `/tokens`."""

    @extend_schema(
        operation_id="tokens_list",
        parameters=PAGE_PARAMETERS,
        responses={
            200: page_serializer("TokenPage", TokenSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> Response:
        """List your tokens.

        Returns the metadata of your tokens, newest first, including expired and revoked ones; a token sees those for
        its own team. The token itself is shown only when it is created."""
        rows, next_cursor = paginate(request, tokens_of(get_principal(request)))
        return paginated_response(serialize_many(TokenSerializer, rows), next_cursor)

    @extend_schema(
        operation_id="tokens_create",
        parameters=IDEMPOTENT,
        request=TokenRequestSerializer,
        responses={201: NewTokenSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Create a token.

        Creates a bearer token for one team. The token is in the response and is not shown again. A request by a
        token gets at most that token's scopes and lifetime, and the new token is revoked with it."""
        asked = parse_body(request, TokenRequestSerializer)
        principal = get_principal(request)
        team = team_named(principal, Permission.VIEW, asked.get("team"))
        scopes, expires_at = narrowed(principal, asked)

        def make() -> Response:
            made = services.issue_token(
                principal.user, team, asked["name"], expires_at, scopes=scopes, parent_id=principal.token_id
            )
            return issued(*made)

        return run_idempotently(request, make)


class TokensRevokeAllView(APIView):
    """Requests to `/tokens:revoke-all`."""

    @extend_schema(
        operation_id="tokens_revoke_all",
        request=None,
        responses={200: RevokedSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Revoke all your tokens.

        Revokes your tokens in all teams. Called with a token, it revokes that token and every token that it created."""
        principal = get_principal(request)
        return Response(
            {"revoked": services.revoke_tokens_of(principal.user, principal.user, by_token=principal.token_id)}
        )


class TokenView(APIView):
    """Requests to `/tokens/{token_id}`."""

    @extend_schema(operation_id="tokens_revoke", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, token_id: str) -> Response:
        """Revoke a token.

        Ends the token immediately, and every token that it created. A token may revoke itself and tokens that can do
        no more than it can."""
        principal = get_principal(request)
        services.revoke_token(principal.user, own_token(principal, token_id).id)
        return Response(status=204)


class TokenRotateView(APIView):
    """Requests to `/tokens/{token_id}:rotate`."""

    @extend_schema(
        operation_id="tokens_rotate",
        parameters=IDEMPOTENT,
        request=TokenRotationSerializer,
        responses={201: NewTokenSerializer, **PROBLEMS},
    )
    def post(self, request: Request, token_id: str) -> Response:
        """Rotate a token.

        Creates a successor with the same name and scopes. The old token continues to work for `overlap_seconds`;
        what else it created ends with it. A person renews a token that they created for another lifetime of the same
        length. A token may rotate itself and what it created, and the successor expires when the old one would have."""
        principal = get_principal(request)
        row = own_token(principal, token_id)
        overlap = parse_body(request, TokenRotationSerializer)["overlap_seconds"]

        def make() -> Response:
            return issued(
                *services.rotate_token(row, timedelta(seconds=overlap), principal.user, by_token=principal.token_id)
            )

        return run_idempotently(request, make)


def own_token(principal: Principal, token_id: str) -> ApiToken:
    """Return a token of the caller. Raises Forbidden if the caller uses a token that can do less."""
    row = token_of(principal, token_id)
    if row.id != principal.token_id:
        _refuse_wider(principal, [Scope(scope) for scope in row.scopes])
    return row


def narrowed(principal: Principal, asked: dict[str, Any]) -> tuple[list[Scope], datetime | None]:
    """Return scopes and end of a new token: never more, nor for longer, than the token that asks for it."""
    scopes = [Scope(scope) for scope in asked.get("scopes", [])]
    if not scopes:
        scopes = [scope for scope in DEFAULT_SCOPES if principal.scopes is None or scope in principal.scopes]
    _refuse_wider(principal, scopes)
    days = asked.get("expires_in_days")
    most = settings.ATHANOR.token_max_days
    if days and days > most:
        detail = f"{days} days are more than a token may live here: {most}"
        problem = FieldProblem("/expires_in_days", "too_long", detail)
        raise Invalid("too_long", detail, remedy=f"ask for at most {most} days", problems=(problem,))
    return scopes, timezone.now() + timedelta(days=days) if days else None


def issued(row: ApiToken, token: str) -> Response:
    """Return the response that contains a new token."""
    return Response({**TokenSerializer(row).data, "token": token}, status=201)


def _refuse_wider(principal: Principal, scopes: list[Scope]) -> None:
    wider = [scope.value for scope in scopes if principal.scopes is not None and not includes(principal.scopes, scope)]
    if wider:
        raise Forbidden(
            "scope_missing",
            f"your token does not have the scope {', '.join(wider)} itself",
            remedy="sign in to the dashboard, or use a token that has it",
        )
