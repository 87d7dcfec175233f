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
    """Of an object as it is answered."""
    text = json.dumps(data, sort_keys=True, cls=DjangoJSONEncoder)
    return f'W/"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'


def with_etag(request: Request, data: Any, tag: str = "") -> Response:
    """The object with its tag (made from `data` without one), or 304 for who has it."""
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
    """What a service calls with the row it has locked, before it changes it. Raises PreconditionFailed.

    `holds`: whether the row is still what the tag was read of.
    """

    def check(row: Row) -> None:
        wanted = request.headers.get("If-Match")
        if wanted and wanted != "*" and not holds(row, wanted):
            raise PreconditionFailed("changed", "it has changed since you read it", remedy="read it again")

    return check
