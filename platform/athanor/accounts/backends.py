"""Passwords, for the dashboard and for Django's admin alike."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.http import HttpRequest

from athanor.accounts import throttling
from athanor.accounts.models import User
from athanor.core.logging import bound_id


class ThrottledBackend(ModelBackend):
    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        """Raises TooManyRequests. Without a request (a command, a test) nothing is counted."""
        address = bound_id("address")
        if username is None or password is None:
            return None
        if request is not None:
            throttling.begin(username, address)
        found = super().authenticate(request, username=username, password=password, **kwargs)
        user = found if isinstance(found, User) and found.service_team_id is None else None
        if user is not None and request is not None:
            throttling.succeeded(username, address)
        return user
