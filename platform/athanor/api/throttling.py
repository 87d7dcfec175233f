"""Limits the requests per minute of one caller; counted in Valkey, reported by the RateLimit-* headers.

It protects the platform from runaway loops, not secrets: while Valkey is unavailable nothing is counted. Sign-in has a
limit of its own, in the database (accounts/throttling.py). The trainer's API is not limited: it paces itself.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from athanor.accounts.selectors import Principal
from athanor.core.errors import TooManyRequests
from athanor.core.valkey import valkey

log = logging.getLogger(__name__)

WINDOW_SECONDS = 60
PAUSE_SECONDS = 5.0  # after a failure, without asking Valkey: each request would wait for its timeout


class _Outage:
    until = 0.0


class CallerThrottle(BaseThrottle):
    """One count per user or service account and minute, over all their tokens and sessions; else by address."""

    def allow_request(self, request: Request, view: Any) -> bool:
        """Count the request. Raises TooManyRequests above the limit."""
        limit = settings.ATHANOR.rate_limit_per_minute
        if not limit or time.monotonic() < _Outage.until:
            return True
        now = time.time()
        reset = WINDOW_SECONDS - int(now) % WINDOW_SECONDS
        try:
            used = _count(f"athanor:rate:{_caller(request)}:{int(now) // WINDOW_SECONDS}")
        except (RedisError, OSError) as error:
            _Outage.until = time.monotonic() + PAUSE_SECONDS
            log.warning("requests are not counted for %.0f s, Valkey is unavailable: %s", PAUSE_SECONDS, error)
            return True
        headers = {"Limit": limit, "Remaining": max(limit - used, 0), "Reset": reset}
        request._request.META["athanor.rate"] = headers
        if used > limit:
            raise TooManyRequests(
                "rate_limited",
                f"more than {limit} requests within a minute",
                remedy=f"wait {reset} seconds; an administrator sets ATHANOR_RATE_LIMIT_PER_MINUTE",
                retry_after_seconds=reset,
            )
        return True


class RateLimitHeadersMiddleware:
    """Sets RateLimit-Limit, -Remaining and -Reset on every counted response, errors included."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Handle a request."""
        response = self._get_response(request)
        for name, value in request.META.get("athanor.rate", {}).items():
            response.headers[f"RateLimit-{name}"] = str(value)
        return response


def _caller(request: Request) -> str:
    principal = request.auth
    if isinstance(principal, Principal):
        return principal.user.id  # not the token: a new one would have its own count
    return str(request.META.get("REMOTE_ADDR", ""))


def _count(key: str) -> int:
    with valkey().pipeline(transaction=False) as pipe:
        pipe.incr(key)
        pipe.expire(key, 2 * WINDOW_SECONDS)
        return int(pipe.execute()[0])
