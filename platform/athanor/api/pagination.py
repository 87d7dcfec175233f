"""Keyset pages over ids, which sort by creation. A cursor is the last id of the page before."""

import re
from collections.abc import Iterable
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from athanor.api.parameters import IntegerParameter, refusal
from athanor.core.keyset import read_page

MAX_LIMIT = 200
DEFAULT_LIMIT = 50
CURSOR = re.compile(r"[a-z]+_[0-9A-Z]{26}")
POSITION = re.compile(r"[0-9]{1,18}")

LIMIT = IntegerParameter(
    "limit", "Maximum number of items per page.", min_value=1, max_value=MAX_LIMIT, default=DEFAULT_LIMIT
)
CURSOR_HELP = "The `next_cursor` of the page before. Empty or absent for the first page."
PAGE_PARAMETERS = [
    LIMIT.openapi,
    OpenApiParameter("cursor", {"type": "string", "pattern": f"^({CURSOR.pattern})?$"}, description=CURSOR_HELP),
]
# Where rows are numbered.
NUMBERED_PAGE_PARAMETERS = [
    LIMIT.openapi,
    OpenApiParameter("cursor", {"type": "string", "pattern": f"^({POSITION.pattern})?$"}, description=CURSOR_HELP),
]

Row = TypeVar("Row", bound=Model)
Item = TypeVar("Item")


def paginate(
    request: Request, rows: QuerySet[Row], details: QuerySet[Row] | None = None
) -> tuple[list[Row], str | None]:
    """Return one page, newest first, and the cursor of the next page.

    With `details` the page is found by ids alone, which an index may answer, and then read from `details`.
    """
    return read_page(rows, LIMIT.read(request), _cursor(request, CURSOR), details=details)


def read_position(request: Request) -> int | None:
    """Return the number after which a list of numbered rows continues, None for its first page."""
    cursor = _cursor(request, POSITION)
    return int(cursor) if cursor else None


def _cursor(request: Request, form: re.Pattern[str]) -> str:
    cursor = request.query_params.get("cursor", "")
    if cursor and not form.fullmatch(cursor):
        detail = f"cursor={cursor[:40]!r} was not made by this list"
        raise refusal("cursor", "cursor", detail, "start without a cursor")
    return cursor


def serialize_many(
    shape: type[Serializer[Item]], rows: Iterable[Item], context: dict[str, Any] | None = None
) -> list[Any]:
    """Return each of `rows` as `shape` represents it."""
    serializer: Any = shape(rows, many=True, context=context or {})  # type: ignore[arg-type] # the stubs know only the serializer of one
    items: list[Any] = serializer.data
    return items


def paginated_response(items: list[Any], next_cursor: str | None = None) -> Response:
    """Return one page of a list. `next_cursor` is None on the last page."""
    return Response({"items": items, "next_cursor": next_cursor})
