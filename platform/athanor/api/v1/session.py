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


class TeamRoleSerializer(serializers.Serializer[Any]):
    """A team of the user, with their role in it."""

    id = serializers.CharField(source="team.id", help_text="Id of the team.")
    name = serializers.CharField(source="team.name", help_text="Name of the team.")
    role = serializers.CharField(help_text="The user's role in the team: `viewer`, `member` or `admin`.")


class SignOnSerializer(serializers.Serializer[Any]):
    """The organisation's sign-on provider."""

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
        allow_null=True, help_text="The organisation's sign-on provider. Null if none is configured."
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


class SessionView(APIView):
    authentication_classes = (DashboardSessionAuthentication,)
    answers_without_second_factor = True
    permission_classes = (AllowAny,)

    @extend_schema(operation_id="session_show", responses={200: SessionSerializer})
    def get(self, request: Request) -> Response:
        """Show the session.

        Returns who is signed in, their teams, and the CSRF token that requests of the dashboard send as
        `X-CSRFToken`. Needs no authentication."""
        return _answer(request)

    # The session's own CSRF check is for those who are signed in; signing in needs one too.
    @extend_schema(
        operation_id="session_begin",
        request=CredentialsSerializer,
        responses={200: SessionSerializer, **PROBLEMS},
    )
    @method_decorator(csrf_protect)
    def post(self, request: Request) -> Response:
        """Sign in.

        Starts a session with a username and a password. A user with a second factor gets 401
        `second_factor_required` with the `kinds` available to them, and sends one of them to `POST
        /session:second-factor` within five minutes."""
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
        """Sign out.

        Ends the session of this browser. Without a session nothing happens."""
        logout(request._request)
        return Response(status=204)


class SecondFactorView(APIView):
    """The second step of signing in."""

    authentication_classes = (DashboardSessionAuthentication,)
    answers_without_second_factor = True
    permission_classes = (AllowAny,)

    @extend_schema(
        operation_id="session_second_factor",
        request=SecondFactorSerializer,
        responses={200: SessionSerializer, **PROBLEMS},
    )
    @method_decorator(csrf_protect)
    def post(self, request: Request) -> Response:
        """Complete a sign-in with a second factor.

        Completes a sign-in that waits for its second factor, in the browser session that started it. Five minutes
        after the password the sign-in expires."""
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
        """Get the passkey challenge of a sign-in.

        Returns the options for `navigator.credentials.get` of a sign-in that waits for its second factor."""
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
