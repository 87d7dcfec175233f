"""Give every request an id, which its response, log lines and events contain, and measure it."""

import re
import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from opentelemetry.trace import SpanKind
from ulid import ULID

from athanor.core import tracing
from athanor.core.logging import bind, bound
from athanor.core.metrics import REQUEST_SECONDS

IDS_OF_ADDRESSES = ("job", "attempt", "cluster", "team")
KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
READING = frozenset({"GET", "HEAD", "OPTIONS"})
AGENT_PATHS = "/api/agent/"
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

    def process_view(self, request: HttpRequest, view: object, args: object, kwargs: dict[str, object]) -> None:
        """Bind the ids in the address: of a job, an attempt, a cluster or a team."""
        bind(**{name: str(kwargs[f"{name}_id"]) for name in IDS_OF_ADDRESSES if f"{name}_id" in kwargs})


class TraceMiddleware:
    """Exports a span of each request, if traces are on. A request that changes a job is part of the job's trace; reads,
    refused requests and reports of agents are not, which come too often or are none of the job's."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle a request."""
        with tracing.work("request", SpanKind.SERVER) as work:
            response = self._get_response(request)
            method, status = known_method(request), response.status_code
            work.name = f"{method} {_route(request)}"
            work.attributes |= {"http.request.method": method, "http.response.status_code": status}
            work.in_job = method not in READING and status < 400 and not request.path.startswith(AGENT_PATHS)
            if status >= 500:
                work.error = str(status)
        return response


class MeasureMiddleware:
    """Measures the time to the start of each response, by the route that was resolved."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle a request."""
        began = time.monotonic()
        response = self._get_response(request)
        method = known_method(request)
        status = f"{response.status_code // 100}xx"
        REQUEST_SECONDS.labels(method, _route(request), status).observe(time.monotonic() - began)
        return response


def known_method(request: HttpRequest) -> str:
    """Return the method, "other" for what is none."""
    return request.method if request.method in KNOWN_METHODS else "other"


def _route(request: HttpRequest) -> str:
    """Return the pattern of the address. Static files are answered before one is resolved, and unknown addresses have
    none of their own."""
    match = request.resolver_match
    if match is None or not match.route:
        return "other"
    return match.view_name if match.route.startswith("^") else match.route  # the dashboard's is a long expression
