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
    id = serializers.CharField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    team = serializers.CharField(source="team.name")
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=[scope.value for scope in Scope]))
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    parent = serializers.CharField(  # type: ignore[assignment] # a field, which DRF takes off the class
        source="parent_id",
        allow_null=True,
        help_text="the token that asked for this one and ends it when it is revoked",
    )


class NewTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="shown this once")


class ScopedSerializer(RequestSerializer):
    name = serializers.CharField(max_length=100)
    expires_in_days = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=1,
        max_value=3650,
        help_text="without it, and at most, as many as ATHANOR_TOKEN_MAX_DAYS allows (365)",
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=[scope.value for scope in Scope]),
        required=False,
        allow_empty=False,
        help_text="all but platform without it; asked for by a token: at most its own",
    )


class RevokedSerializer(serializers.Serializer[Any]):
    revoked = serializers.IntegerField(min_value=0, help_text="how many of them were valid")


class TokenRequestSerializer(ScopedSerializer):
    team = serializers.CharField(required=False)


class TokenRotationSerializer(RequestSerializer):
    overlap_seconds = serializers.IntegerField(
        default=DEFAULT_OVERLAP_SECONDS,
        min_value=0,
        max_value=LONGEST_OVERLAP_SECONDS,
        help_text="for which the old one still works",
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
        rows, next_cursor = page(request, tokens_of(principal(request)))
        return Response(listed(serialize_many(TokenSerializer, rows), next_cursor))

    @extend_schema(
        operation_id="tokens_create",
        parameters=IDEMPOTENT,
        request=TokenRequestSerializer,
        responses={201: NewTokenSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
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
        description="All of yours, in all teams. Asked by a token: that token and all that it has made.",
    )
    def post(self, request: Request) -> Response:
        who = principal(request)
        return Response({"revoked": services.revoke_tokens_of(who.user, who.user, by_token=who.token_id)})


class TokenView(APIView):
    @extend_schema(operation_id="tokens_revoke", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, token_id: str) -> Response:
        who = principal(request)
        services.revoke_token(who.user, own_token(who, token_id).id)
        return Response(status=204)


class TokenRotateView(APIView):
    @extend_schema(
        operation_id="tokens_rotate",
        parameters=IDEMPOTENT,
        request=TokenRotationSerializer,
        responses={201: NewTokenSerializer, **PROBLEMS},
        description=(
            "A successor with the same name and scopes; what else the old one has made ends with it. A person renews a "
            "token that they made for as long again. A token may rotate itself and what it has made, and the successor "
            "ends when the old one would have."
        ),
    )
    def post(self, request: Request, token_id: str) -> Response:
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
