"""/session: the dashboard signs in and out."""

from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate, login, logout
from django.middleware.csrf import get_token
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_protect
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.models import User
from athanor.accounts.roles import PlatformRole
from athanor.accounts.selectors import memberships_of, principal_of
from athanor.api.authentication import DashboardSessionAuthentication
from athanor.api.bodies import RequestSerializer, read
from athanor.api.v1.shapes import PROBLEMS
from athanor.core.errors import Unauthenticated


class UserSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    username = serializers.CharField()
    email = serializers.CharField(allow_blank=True)
    is_staff = serializers.BooleanField()
    platform_role = serializers.ChoiceField(choices=[role.value for role in PlatformRole])


class TeamRoleSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(source="team.id")
    name = serializers.CharField(source="team.name")
    role = serializers.CharField()


class SignOnSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    url = serializers.CharField(help_text="to POST to, with the CSRF token")


class SessionSerializer(serializers.Serializer[Any]):
    authenticated = serializers.BooleanField()
    user = UserSerializer(allow_null=True)
    teams = TeamRoleSerializer(many=True)
    csrf_token = serializers.CharField()
    sign_on = SignOnSerializer(allow_null=True, help_text="by the organisation's own provider; null without one")


class CredentialsSerializer(RequestSerializer):
    username = serializers.CharField()
    password = serializers.CharField(trim_whitespace=False)


class SessionView(APIView):
    authentication_classes = (DashboardSessionAuthentication,)
    permission_classes = (AllowAny,)

    @extend_schema(operation_id="session_show", responses={200: SessionSerializer})
    def get(self, request: Request) -> Response:
        return _answer(request)

    # The session's own CSRF check is for those who are signed in; signing in needs one too.
    @extend_schema(
        operation_id="session_begin",
        request=CredentialsSerializer,
        responses={200: SessionSerializer, **PROBLEMS},
    )
    @method_decorator(csrf_protect)
    def post(self, request: Request) -> Response:
        given = read(CredentialsSerializer, request)
        user = authenticate(request._request, **given)
        if user is None:
            raise Unauthenticated(
                "invalid_credentials", "there is no user with this name and password", remedy="check both"
            )
        login(request._request, user)
        request.user = user
        return _answer(request)

    @extend_schema(operation_id="session_end", responses={204: None})
    def delete(self, request: Request) -> Response:
        logout(request._request)
        return Response(status=204)


def _sign_on() -> dict[str, str]:
    app = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]
    return {"name": app["name"], "url": reverse("openid_connect_login", args=[app["provider_id"]])}


def _answer(request: Request) -> Response:
    user: Any = request.user if isinstance(request.user, User) else None
    body = {
        "authenticated": user is not None,
        "user": user,
        "teams": memberships_of(principal_of(user)).order_by("team__name") if user else [],
        "csrf_token": get_token(request._request),
        "sign_on": _sign_on() if settings.SIGN_ON else None,
    }
    return Response(SessionSerializer(body).data)
