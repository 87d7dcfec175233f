"""/session and /sessions: the caller's password and sessions. Signing in is in session.py."""

from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_protect
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts import passwords, sessions
from athanor.accounts.models import User
from athanor.api.authentication import DashboardSessionAuthentication
from athanor.api.bodies import parse_body, read_field
from athanor.api.pagination import paginated_response, serialize_many
from athanor.api.v1.serializers.account import (
    EndedSerializer,
    PasswordChangeSerializer,
    PasswordResetSerializer,
    SignInSerializer,
)
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.core.errors import Unauthenticated


class AccountView(APIView):
    """Base of the views for dashboard sessions only: a token must not take over the account that it belongs to."""

    authentication_classes = (DashboardSessionAuthentication,)
    answers_without_second_factor = True


class PasswordView(AccountView):
    """Requests to `/session:change-password`."""

    @extend_schema(
        operation_id="session_change_password",
        request=PasswordChangeSerializer,
        responses={204: None, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """Change your password.

        Sets a new password. Your other sessions end. Only a dashboard session may call it, not a token."""
        asked = parse_body(request, PasswordChangeSerializer)
        passwords.change(request._request, _user(request), asked["current_password"], asked["new_password"])
        return Response(status=204)


class PasswordResetView(APIView):
    """Requests to `/session:reset-password`. The token of the link authenticates them."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(
        operation_id="session_reset_password",
        request=PasswordResetSerializer,
        responses={204: None, **PROBLEMS},
    )
    @method_decorator(csrf_protect)
    def post(self, request: Request) -> Response:
        """Reset a password by link.

        Sets a new password by the token of a link that an administrator created. All sessions of the user end. Needs
        no authentication."""
        if not read_field(request, "token"):
            raise Unauthenticated("invalid_reset_link", "no token was given", remedy="send the token of the link")
        asked = parse_body(request, PasswordResetSerializer)
        passwords.reset(asked["token"], asked["new_password"])
        return Response(status=204)


class SignInsView(AccountView):
    """Requests to `/sessions`."""

    @extend_schema(
        operation_id="sessions_list",
        responses={200: page_serializer("SignInPage", SignInSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """List your sessions.

        Returns the browsers in which you are signed in, newest first. Only a dashboard session may call it, not a
        token."""
        current = request._request.session.session_key
        rows = [
            {
                "id": str(session.pk),
                "current": session.session_key == current,
                "address": session.ip,
                "browser": session.user_agent,
                "created_at": session.created_at,
            }
            for session in sessions.sessions_of(_user(request))
        ]
        return paginated_response(serialize_many(SignInSerializer, rows))


class SignInView(AccountView):
    """Requests to `/sessions/{session_id}`."""

    @extend_schema(
        operation_id="sessions_end",
        responses={204: None, **PROBLEMS},
    )
    def delete(self, request: Request, session_id: int) -> Response:
        """End a session.

        Signs you out of one browser. Only a dashboard session may call it, not a token."""
        sessions.end(_user(request), session_id)
        return Response(status=204)


class OtherSignInsView(AccountView):
    """Requests to `/sessions:end-others`."""

    @extend_schema(
        operation_id="sessions_end_others",
        request=None,
        responses={200: EndedSerializer, **PROBLEMS},
    )
    def post(self, request: Request) -> Response:
        """End all other sessions.

        Signs you out of every browser but this one. Only a dashboard session may call it, not a token."""
        ended = sessions.end_others(_user(request), request._request.session.session_key or "")
        return Response({"ended": ended})


def _user(request: Request) -> User:
    assert isinstance(request.user, User)
    return request.user
