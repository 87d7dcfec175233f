"""The OpenAPI document, as `make gen` built it. To build it takes a second of CPU; a test keeps it current."""

import hashlib
from functools import lru_cache
from pathlib import Path

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import etag, require_safe

MEDIA_TYPE = "application/vnd.oai.openapi+json"
PATH = Path(__file__).with_name("openapi.json")
FRESH_SECONDS = 300


@lru_cache(maxsize=1)
def _content() -> tuple[bytes, str]:
    built = PATH.read_bytes()
    return built, f'"{hashlib.sha256(built).hexdigest()[:24]}"'


def content() -> bytes:
    """Return the OpenAPI document as JSON."""
    return _content()[0]


@require_safe
@etag(lambda request: _content()[1])
def openapi(request: HttpRequest) -> HttpResponse:
    """Return the document, or 304 to a client that has it."""
    headers = {"Cache-Control": f"public, max-age={FRESH_SECONDS}"}
    return HttpResponse(content(), content_type=MEDIA_TYPE, headers=headers)
