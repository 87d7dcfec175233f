"""Addresses outside the API: health checks, the dashboard's page, and unknown addresses."""

import logging
import secrets
import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.csrf import csrf_failure as default_csrf_failure
from redis import Redis
from redis.exceptions import RedisError

from athanor.api.errors import CONTENT_TYPE, problem
from athanor.api.headers import CSP, page_policy
from athanor.artifacts import storage
from athanor.artifacts.rotation import require_master_key
from athanor.core.clock import require_right_clock
from athanor.core.disks import require_writable
from athanor.core.errors import AthanorError

log = logging.getLogger(__name__)

OK, UNAVAILABLE = "ok", "unavailable"
FRESH_SECONDS = 1.0
CHECK_SECONDS = 1.5
NONCE_PLACEHOLDER = "ATHANOR_CSP_NONCE"  # vite.config.ts writes it into the page
# First segments of the routes of frontend/src/app/router.tsx; a test compares the two.
DASHBOARD_PAGES = (
    "account", "alerts", "audit", "budgets", "clusters", "compare", "costs", "datasets", "invitation", "jobs", "models",
    "operations", "prices", "queue", "quotas", "reset-password", "sign-in", "simulator", "team", "tokens", "webhooks",
)  # fmt: skip
DASHBOARD_ROUTES = rf"^(?:(?:{'|'.join(DASHBOARD_PAGES)})(?:/.*)?)?$"


def healthz(request: HttpRequest) -> JsonResponse:
    """Report that this process responds."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """Report within two seconds whether the required services respond, database and disks can be written, and clock and
    key fit the database.

    The broker is not required: without it jobs run later.
    """
    checks = _readiness.checks()
    ready = all(answer == OK for name, answer in checks.items() if name != "broker")
    return JsonResponse({"status": OK if ready else UNAVAILABLE, "checks": checks}, status=200 if ready else 503)


def dashboard(request: HttpRequest) -> HttpResponse:
    """Return the dashboard's page, for each of its routes, which the browser resolves."""
    index = settings.ATHANOR.dashboard_dir / "index.html"
    if not index.is_file():
        return HttpResponse(
            "The dashboard is not built. Run `make setup`; the API is at /api/docs/.",
            status=404,
            content_type="text/plain",
        )
    nonce = secrets.token_urlsafe(16)
    page = index.read_text(encoding="utf-8").replace(NONCE_PLACEHOLDER, nonce)
    response = HttpResponse(page, content_type="text/html; charset=utf-8", headers={"Cache-Control": "no-store"})
    response.headers[CSP] = page_policy(nonce)
    return response


def unknown(request: HttpRequest) -> JsonResponse:
    """Return the problem for an unknown address."""
    detail = f"there is no page or resource {request.path}"
    return plain_problem(404, "Not found", "not_found", detail, remedy="the API is described at /api/docs/")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Return the problem for a failed CSRF check; Django's page outside the API."""
    if not request.path.startswith("/api/"):
        return default_csrf_failure(request, reason)
    return plain_problem(
        403, "Not allowed", "csrf_failed", reason, remedy="read GET /api/v1/session and send X-CSRFToken"
    )


def plain_problem(status: int, title: str, code: str, detail: str, *, remedy: str) -> JsonResponse:
    """Return a problem from a view of Django."""
    answer = problem(status, title, code, detail, remedy=remedy)
    return JsonResponse(answer.data, status=status, content_type=CONTENT_TYPE)


class _Check:
    """A check that runs in a thread of its own: a part that hangs delays no answer, and is asked once."""

    def __init__(self, name: str, check: Callable[[], None]) -> None:
        self._name, self._check = name, check
        self._thread: threading.Thread | None = None
        self._answer = UNAVAILABLE

    def start(self) -> None:
        """Begin to check, unless an earlier check still waits for its answer."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name=f"readiness of {self._name}", daemon=True)
            self._thread.start()

    def answer(self, deadline: float) -> str:
        """Return the answer, or "unavailable" if there is none until `deadline`, in monotonic seconds."""
        assert self._thread is not None
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("not ready: %s: no answer within %s s", self._name, CHECK_SECONDS)
            return UNAVAILABLE
        return self._answer

    def _run(self) -> None:
        try:
            self._check()
            self._answer = OK
        except (DatabaseError, AthanorError, RedisError, OSError) as error:
            self._answer = UNAVAILABLE
            log.warning("not ready: %s: %s", self._name, error)
        finally:
            connection.close()  # of this thread


class _Readiness:
    """One check for all requests within FRESH_SECONDS. While one request checks, others get the previous result."""

    def __init__(self) -> None:
        self._checking = threading.Lock()
        self._parts = {name: _Check(name, check) for name, check in PARTS.items()}
        self._checks: dict[str, str] = {}
        self._checked_at = float("-inf")

    def checks(self) -> dict[str, str]:
        """Return "ok" or "unavailable" for each part, within CHECK_SECONDS. The reasons are only in the log."""
        if time.monotonic() - self._checked_at < FRESH_SECONDS:
            return self._checks
        if not self._checking.acquire(blocking=not self._checks):
            return self._checks
        try:
            if time.monotonic() - self._checked_at >= FRESH_SECONDS:
                deadline = time.monotonic() + CHECK_SECONDS
                for part in self._parts.values():
                    part.start()
                self._checks = {name: part.answer(deadline) for name, part in self._parts.items()}
                self._checked_at = time.monotonic()
            return self._checks
        finally:
            self._checking.release()


def _database() -> None:
    with connection.cursor() as cursor:
        # Writes to the database's log, which no query does, and no table. Fails on a standby, too.
        cursor.execute("SELECT pg_logical_emit_message(true, 'athanor.readyz', '')")


def _object_store() -> None:
    storage.size_of("readyz")


def _broker() -> None:
    with Redis.from_url(settings.CELERY_BROKER_URL, socket_connect_timeout=2, socket_timeout=2) as broker:
        broker.ping()


PARTS: dict[str, Callable[[], None]] = {
    "database": _database,
    "object_store": _object_store,
    "broker": _broker,
    "disk": require_writable,
    "clock": require_right_clock,
    "master_key": require_master_key,
}
_readiness = _Readiness()
