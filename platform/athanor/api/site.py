"""What is not the API: health, the dashboard's page, and answers to unknown addresses."""

from django.conf import settings
from django.db import DatabaseError, connection
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.views.csrf import csrf_failure as default_csrf_failure
from redis import Redis
from redis.exceptions import RedisError

from athanor.api.errors import CONTENT_TYPE, problem
from athanor.artifacts import storage
from athanor.core.errors import Unavailable


def healthz(request: HttpRequest) -> JsonResponse:
    """This process answers."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    """What this process needs answers too. Without the broker work goes on, later: it does not count."""
    checks = {"database": _database(), "object_store": _object_store()}
    ready = all(answer == "ok" for answer in checks.values())
    checks["broker"] = _broker()
    return JsonResponse({"status": "ok" if ready else "unavailable", "checks": checks}, status=200 if ready else 503)


def dashboard(request: HttpRequest) -> HttpResponseBase:
    """Every address that is no other's is the dashboard's: it routes in the browser."""
    index = settings.ATHANOR.dashboard_dir / "index.html"
    if not index.is_file():
        return HttpResponse(
            "The dashboard is not built. Run `make dashboard`; the API is at /api/docs/.",
            status=404,
            content_type="text/plain",
        )
    response = FileResponse(index.open("rb"), content_type="text/html; charset=utf-8")
    response["Cache-Control"] = "no-cache"
    return response


def unknown_api(request: HttpRequest) -> JsonResponse:
    return _problem(404, "Not found", "not_found", f"there is no {request.path}", remedy="see /api/docs/")


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    if not request.path.startswith("/api/"):
        return default_csrf_failure(request, reason)
    return _problem(403, "Not allowed", "csrf_failed", reason, remedy="read GET /api/v1/session and send X-CSRFToken")


def _problem(status: int, title: str, code: str, detail: str, *, remedy: str) -> JsonResponse:
    answer = problem(status, title, code, detail, remedy=remedy)
    return JsonResponse(answer.data, status=status, content_type=CONTENT_TYPE)


def _database() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return str(error).splitlines()[0]
    return "ok"


def _object_store() -> str:
    try:
        storage.size_of("readyz")
    except Unavailable as error:
        return error.message
    return "ok"


def _broker() -> str:
    try:
        with Redis.from_url(settings.CELERY_BROKER_URL, socket_connect_timeout=2, socket_timeout=2) as broker:
            broker.ping()
    except (RedisError, OSError) as error:
        return str(error)
    return "ok"
