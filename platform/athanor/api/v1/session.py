"""/session: sign in and out of the dashboard."""

from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate, login, logout
from django.middleware.csrf import get_token
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_protect
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import passkeys, second_factors
from athanor.accounts.models import User
from athanor.accounts.selectors import memberships_of, principal_of
from athanor.api.authentication import DashboardSessionAuthentication
from athanor.api.bodies import parse_body
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.session import (
    CredentialsSerializer,
    PasskeyOptionsSerializer,
    SecondFactorSerializer,
    SessionSerializer,
)
from athanor.core.errors import Unauthenticated


class SessionView(APIView):
    """Requests to `/session`."""

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
        given = parse_body(request, CredentialsSerializer)
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
        given = parse_body(request, SecondFactorSerializer)
        if "passkey" in given:
            request.user = passkeys.complete_sign_in(request._request, given["passkey"])
        else:
            request.user = second_factors.complete_by_code(request._request, given["code"])
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
        "teams": memberships_of(principal_of(user)) if user else [],
        "csrf_token": get_token(request._request),
        "sign_on": _sign_on() if settings.SIGN_ON else None,
        "second_factor": _pending(request) if user is None else None,
        "second_factor_setup_required": user is not None and second_factors.must_set_up(user),
    }
    return Response(SessionSerializer(body).data)
