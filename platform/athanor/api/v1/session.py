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

from athanor.accounts import passkeys, second_factors
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


class PendingSecondFactorSerializer(serializers.Serializer[Any]):
    """A sign-in of this browser whose password was correct and that waits for its second factor."""

    kinds = serializers.ListField(child=serializers.ChoiceField(choices=second_factors.KINDS))


class SessionSerializer(serializers.Serializer[Any]):
    authenticated = serializers.BooleanField()
    user = UserSerializer(allow_null=True)
    teams = TeamRoleSerializer(many=True)
    csrf_token = serializers.CharField()
    sign_on = SignOnSerializer(allow_null=True, help_text="by the organisation's own provider; null without one")
    second_factor = PendingSecondFactorSerializer(
        allow_null=True, help_text="Set while a sign-in waits for POST /session:second-factor."
    )
    second_factor_setup_required = serializers.BooleanField(
        help_text="The platform demands a second factor and the user has none: only the account's endpoints answer."
    )


class SecondFactorSerializer(serializers.Serializer[Any]):
    """One of the two."""

    code = serializers.CharField(
        max_length=50, required=False, help_text="Of the authenticator app, or a recovery code."
    )
    passkey = serializers.DictField(
        required=False,
        help_text="The PublicKeyCredential that navigator.credentials.get returned, as JSON (base64url).",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs) != 1:
            raise serializers.ValidationError("give either code or passkey")
        return attrs


class PasskeyOptionsSerializer(serializers.Serializer[Any]):
    """Options of WebAuthn as JSON; binary values are base64url."""

    publicKey = serializers.DictField()


class CredentialsSerializer(RequestSerializer):
    username = serializers.CharField()
    password = serializers.CharField(trim_whitespace=False)


class SessionView(APIView):
    authentication_classes = (DashboardSessionAuthentication,)
    answers_without_second_factor = True
    permission_classes = (AllowAny,)

    @extend_schema(operation_id="session_show", responses={200: SessionSerializer})
    def get(self, request: Request) -> Response:
        return _answer(request)

    # The session's own CSRF check is for those who are signed in; signing in needs one too.
    @extend_schema(
        operation_id="session_begin",
        description=(
            "Signs in. A user with a second factor gets 401 `second_factor_required` with the `kinds` that they have; "
            "send one of them to POST /session:second-factor within five minutes."
        ),
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
        if second_factors.kinds_of(_person(user)):
            raise second_factors.begin_sign_in(request._request, _person(user))
        login(request._request, user)
        request.user = user
        return _answer(request)

    @extend_schema(operation_id="session_end", responses={204: None})
    def delete(self, request: Request) -> Response:
        logout(request._request)
        return Response(status=204)


class SecondFactorView(APIView):
    """The second step of signing in."""

    authentication_classes = (DashboardSessionAuthentication,)
    answers_without_second_factor = True
    permission_classes = (AllowAny,)

    @extend_schema(
        operation_id="session_second_factor",
        description="Completes a sign-in that waits for its second factor, in the browser session that began it.",
        request=SecondFactorSerializer,
        responses={200: SessionSerializer, **PROBLEMS},
    )
    @method_decorator(csrf_protect)
    def post(self, request: Request) -> Response:
        second_factors.require_pending_user(request._request)
        given = SecondFactorSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        if "passkey" in given.validated_data:
            request.user = passkeys.complete_sign_in(request._request, given.validated_data["passkey"])
        else:
            request.user = second_factors.complete_by_code(request._request, given.validated_data["code"])
        return _answer(request)


class PasskeyChallengeView(APIView):
    """The challenge for a passkey in the second step of signing in."""

    authentication_classes = (DashboardSessionAuthentication,)
    answers_without_second_factor = True
    permission_classes = (AllowAny,)

    @extend_schema(
        operation_id="session_passkey_challenge",
        request=None,
        responses={200: PasskeyOptionsSerializer, **PROBLEMS},
    )
    @method_decorator(csrf_protect)
    def post(self, request: Request) -> Response:
        return Response(passkeys.begin_sign_in(request._request))


def _person(user: object) -> User:
    assert isinstance(user, User)
    return user


def _pending(request: Request) -> dict[str, list[str]] | None:
    pending = second_factors.pending_user(request._request)
    return {"kinds": second_factors.kinds_of(pending)} if pending is not None else None


def _sign_on() -> dict[str, str]:
    providers: Any = settings.SOCIALACCOUNT_PROVIDERS  # mypy's plugin takes a setting of a dict for an object
    app = providers["openid_connect"]["APPS"][0]
    return {"name": app["name"], "url": reverse("openid_connect_login", args=[app["provider_id"]])}


def _answer(request: Request) -> Response:
    user: Any = request.user if isinstance(request.user, User) else None
    body = {
        "authenticated": user is not None,
        "user": user,
        "teams": memberships_of(principal_of(user)).order_by("team__name") if user else [],
        "csrf_token": get_token(request._request),
        "sign_on": _sign_on() if settings.SIGN_ON else None,
        "second_factor": _pending(request) if user is None else None,
        "second_factor_setup_required": user is not None and second_factors.must_set_up(user),
    }
    return Response(SessionSerializer(body).data)
