"""`ETag`, `If-None-Match` and `If-Match`: an unchanged object is not sent again, a changed one is not overwritten."""

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

from django.core.serializers.json import DjangoJSONEncoder
from django.utils.http import parse_etags
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from athanor.core.errors import PreconditionFailed

IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The `ETag` that you read. If the object has changed since, the response is 412.",
)
Row = TypeVar("Row")


def compute_etag(data: Any) -> str:
    """Return the ETag of a serialized object."""
    text = json.dumps(data, sort_keys=True, cls=DjangoJSONEncoder)
    return f'W/"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'


def with_etag(request: Request, data: Any, tag: str = "") -> Response:
    """Return the object with its ETag (of `data` without one), or 304 to a client that has it."""
    tag = tag or compute_etag(data)
    if _matches(request.headers.get("If-None-Match"), tag):
        return Response(status=304, headers={"ETag": tag})
    return Response(data, headers={"ETag": tag})


def _matches(header: str | None, tag: str) -> bool:
    """Return whether one of the tags that a client has is this one; weak comparison (RFC 9110, 8.8.3.2)."""
    if not header:
        return False
    known = parse_etags(header)
    return known == ["*"] or tag.removeprefix("W/") in {each.removeprefix("W/") for each in known}


def if_match_check(request: Request, holds: Callable[[Row, str], bool]) -> Callable[[Row], None]:
    """Return a check that a service runs on the locked row before it changes it. It raises PreconditionFailed.

    `holds` returns whether an ETag is still that of the row.
    """

    def check(row: Row) -> None:
        wanted = request.headers.get("If-Match")
        if wanted and wanted != "*" and not holds(row, wanted):
            raise PreconditionFailed("changed", "it has changed since you read it", remedy="read it again")

    return check
