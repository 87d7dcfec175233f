"""The metrics of the platform for Prometheus, behind a token of their own."""

import hmac

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from athanor.api.site import plain_problem
from athanor.monitoring import exposition


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics in the text format, to whom sends ATHANOR_METRICS_TOKEN."""
    expected: str = settings.ATHANOR.metrics_token
    if not expected:
        detail = "this installation serves no metrics"
        remedy = "set ATHANOR_METRICS_TOKEN for the web and start it again"
        return plain_problem(404, "Not found", "metrics_off", detail, remedy=remedy)
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), expected.encode()):
        response = plain_problem(
            401, "Not signed in", "metrics_token", "the token for metrics is missing or wrong",
            remedy="send the value of ATHANOR_METRICS_TOKEN as Authorization: Bearer TOKEN",
        )  # fmt: skip
        response.headers["WWW-Authenticate"] = 'Bearer realm="metrics"'
        return response
    return HttpResponse(
        exposition.render(), content_type=exposition.CONTENT_TYPE, headers={"Cache-Control": "no-store"}
    )
