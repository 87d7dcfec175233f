"""/tokens: of the caller, for pipelines and the command line."""

from datetime import timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import services
from athanor.accounts.selectors import tokens_of
from athanor.api.access import principal, team_to_write
from athanor.api.pagination import listed, page
from athanor.api.v1.jobs import PROBLEMS
from athanor.api.v1.shapes import page_of


class TokenSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    name = serializers.CharField()
    prefix = serializers.CharField()
    team = serializers.CharField(source="team.name")
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)


class NewTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="shown this once")


class TokenRequestSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    team = serializers.CharField(required=False)
    expires_in_days = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=3650)


class TokensView(APIView):
    @extend_schema(
        operation_id="tokens_list",
        responses={
            200: page_of("TokenPage", TokenSerializer),
            **PROBLEMS,
        },
    )
    def get(self, request: Request) -> Response:
        rows, next_cursor = page(request, tokens_of(principal(request)))
        return Response(listed(TokenSerializer(rows, many=True).data, next_cursor))

    @extend_schema(
        operation_id="tokens_create", request=TokenRequestSerializer, responses={201: NewTokenSerializer, **PROBLEMS}
    )
    def post(self, request: Request) -> Response:
        asked = TokenRequestSerializer(data=request.data)
        asked.is_valid(raise_exception=True)
        who = principal(request)
        team = team_to_write(who, asked.validated_data.get("team"))
        days = asked.validated_data.get("expires_in_days")
        expires_at = timezone.now() + timedelta(days=days) if days else None
        row, token = services.issue_token(who.user, team, asked.validated_data["name"], expires_at)
        return Response({**TokenSerializer(row).data, "token": token}, status=201)


class TokenView(APIView):
    @extend_schema(operation_id="tokens_revoke", responses={204: None, **PROBLEMS})
    def delete(self, request: Request, token_id: str) -> Response:
        services.revoke_token(principal(request).user, token_id)
        return Response(status=204)
