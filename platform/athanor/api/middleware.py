"""Give every request an id, which its response, log lines and events contain."""

import re
from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from ulid import ULID

from athanor.core.logging import bound

ACCEPTED = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


class RequestIdMiddleware:
    """Uses the caller's X-Request-ID if it is well-formed, else generates one.

    The bound address is the one that the server saw; behind a proxy of ATHANOR_TRUSTED_PROXIES, the one that the proxy
    names.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle a request."""
        asked = request.headers.get("X-Request-ID", "")
        request_id = asked if ACCEPTED.match(asked) else f"req_{ULID()}"
        with bound(request=request_id, address=str(request.META.get("REMOTE_ADDR", ""))):
            response = self._get_response(request)
        response.headers["X-Request-ID"] = request_id
        return response
