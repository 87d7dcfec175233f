"""/tokens: of the caller, for pipelines and the command line; and what service accounts' tokens share with them."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import services
from athanor.accounts.models import ApiToken
from athanor.accounts.roles import DEFAULT_SCOPES, Permission, Scope, includes
from athanor.accounts.selectors import Principal, tokens_of
from athanor.api.access import principal, team_named
from athanor.api.bodies import RequestSerializer, read
from athanor.api.idempotency import IDEMPOTENT, once
from athanor.api.pagination import PAGED, listed, page, serialize_many
from athanor.api.v1.shapes import PROBLEMS, page_of
from athanor.core.errors import FieldProblem, Forbidden, Invalid, NotFound

LONGEST_OVERLAP_SECONDS = 7 * 86_400
DEFAULT_OVERLAP_SECONDS = 3600


class TokenSerializer(serializers.Serializer[Any]):
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
        max_value=LONGEST_OVERLAP_SECONDS,
        help_text="Seconds for which the old token continues to work.",
    )


class TokensView(APIView):
    @extend_schema(
        operation_id="tokens_list",
        parameters=PAGED,
        responses={
            200: page_of("TokenPage", TokenSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> Response:
        """List your tokens.

        Returns the metadata of your tokens, newest first, including expired and revoked ones; a token sees those for
        its own team. The token itself is shown only when it is created."""
        rows, next_cursor = page(request, tokens_of(principal(request)))
        return Response(listed(serialize_many(TokenSerializer, rows), next_cursor))

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
        asked = read(TokenRequestSerializer, request)
        who = principal(request)
        team = team_named(who, Permission.VIEW, asked.get("team"))
        scopes, expires_at = narrowed(who, asked)

        def make() -> Response:
            made = services.issue_token(
                who.user, team, asked["name"], expires_at, scopes=scopes, parent_id=who.token_id
            )
            return issued(*made)

        return once(request, make)


class TokensRevokeAllView(APIView):
    @extend_schema(
        operation_id="tokens_revoke_all",
        request=None,
        responses={200: RevokedSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Revoke all your tokens.

        Revokes your tokens in all teams. Called with a token, it revokes that token and every token that it created."""
        who = principal(request)
        return Response({"revoked": services.revoke_tokens_of(who.user, who.user, by_token=who.token_id)})


class TokenView(APIView):
    @extend_schema(operation_id="tokens_revoke", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, token_id: str) -> Response:
        """Revoke a token.

        Ends the token immediately, and every token that it created. A token may revoke itself and tokens that can do
        no more than it can."""
        who = principal(request)
        services.revoke_token(who.user, own_token(who, token_id).id)
        return Response(status=204)


class TokenRotateView(APIView):
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
        who = principal(request)
        row = own_token(who, token_id)
        overlap = read(TokenRotationSerializer, request)["overlap_seconds"]

        def make() -> Response:
            return issued(*services.rotate_token(row, timedelta(seconds=overlap), who.user, by_token=who.token_id))

        return once(request, make)


def own_token(who: Principal, token_id: str) -> ApiToken:
    """One of the caller's own. A token reaches only itself and those that can do no more than it can."""
    row = tokens_of(who).filter(pk=token_id).first()
    if row is None:
        raise NotFound("token", token_id)
    if row.id != who.token_id:
        _refuse_wider(who, [Scope(scope) for scope in row.scopes])
    return row


def narrowed(who: Principal, asked: dict[str, Any]) -> tuple[list[Scope], datetime | None]:
    """Return scopes and end of a new token: never more, nor for longer, than the token that asks for it."""
    scopes = [Scope(scope) for scope in asked.get("scopes", [])]
    if not scopes:
        scopes = [scope for scope in DEFAULT_SCOPES if who.scopes is None or scope in who.scopes]
    _refuse_wider(who, scopes)
    days = asked.get("expires_in_days")
    most = settings.ATHANOR.token_max_days
    if days and days > most:
        detail = f"{days} days are more than a token may live here: {most}"
        problem = FieldProblem("/expires_in_days", "too_long", detail)
        raise Invalid("too_long", detail, remedy=f"ask for at most {most} days", problems=(problem,))
    return scopes, timezone.now() + timedelta(days=days) if days else None


def issued(row: ApiToken, token: str) -> Response:
    return Response({**TokenSerializer(row).data, "token": token}, status=201)


def _refuse_wider(who: Principal, scopes: list[Scope]) -> None:
    wider = [scope.value for scope in scopes if who.scopes is not None and not includes(who.scopes, scope)]
    if wider:
        raise Forbidden(
            "scope_missing",
            f"your token does not have the scope {', '.join(wider)} itself",
            remedy="sign in to the dashboard, or use a token that has it",
        )
