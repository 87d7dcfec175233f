"""Authentication by a bearer token or the dashboard's session."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request

from athanor.accounts import second_factors, sign_on_expiry
from athanor.accounts.models import User
from athanor.accounts.selectors import Principal, principal_of, principal_of_token
from athanor.accounts.services import TOKEN_PREFIX, recognise_token
from athanor.core import tenancy
from athanor.core.errors import Forbidden, Unauthenticated
from athanor.core.logging import bind


class ApiTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer ath_...`. Another scheme is ignored; an invalid token is refused."""

    def authenticate(self, request: Request) -> tuple[User, Principal] | None:
        """Return the user and the principal of a bearer token, None for another scheme. Raises Unauthenticated."""
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = recognise_token(secret.strip()) if secret.startswith(TOKEN_PREFIX) else None
        if token is None:
            raise Unauthenticated(
                "invalid_token", "the token is unknown, expired or revoked", remedy="sign in again: athanor login"
            )
        bind(user=token.user.id, token=token.id)
        return token.user, _let_in(principal_of_token(token))

    def authenticate_header(self, request: Request) -> str:
        """Return the scheme for WWW-Authenticate."""
        return "Bearer"


class DashboardSessionAuthentication(SessionAuthentication):
    """Django's session with its CSRF check; anonymous requests of the sign-in page are checked there.

    Refuses users who lack a second factor that ATHANOR_REQUIRE_SECOND_FACTOR demands, except for views with
    `answers_without_second_factor`: those that sign in and set it up.
    """

    def authenticate(self, request: Request) -> tuple[User, Principal] | None:
        """Return the user and the principal of a session, None without a valid one. Raises Forbidden."""
        found = super().authenticate(request)
        if found is None:
            return None
        user: Any = found[0]
        if sign_on_expiry.is_expired(user):
            return None  # like an expired session: the dashboard shows the sign-in page
        bind(user=user.id)
        view = (request.parser_context or {}).get("view")
        if not getattr(view, "answers_without_second_factor", False) and second_factors.must_set_up(user):
            raise Forbidden(
                "second_factor_setup_required",
                f"{user.username} needs a second factor here and has none",
                remedy="set one up on the page Account of the dashboard (/account)",
            )
        return user, _let_in(principal_of(user))

    def enforce_csrf(self, request: Request) -> None:
        """Check the CSRF token. Raises Forbidden."""
        try:
            super().enforce_csrf(request)
        except PermissionDenied as error:
            raise Forbidden(
                "csrf_failed", str(error.detail), remedy="read GET /api/v1/session and send X-CSRFToken"
            ) from error


def _let_in(principal: Principal) -> Principal:
    tenancy.restrict(principal.team_ids)
    return principal


class _TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its hook for subclasses
    target_class = ApiTokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "ath_..."}


class _SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call] # its hook for subclasses
    target_class = DashboardSessionAuthentication
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "sessionid"}
