"""Keyset pages over ids, which sort by creation. A cursor is the last id of the page before."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import Model, QuerySet
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer

from athanor.api.parameters import IntegerParameter, refusal
from athanor.core.keyset import Orders, read_page, read_sorted_page

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


@dataclass(frozen=True)
class SortParameter:
    """The parameter `sort`: one of the names in `orders`, with `-` before it for the largest first."""

    orders: Orders
    default: str = "-created_at"

    @property
    def openapi(self) -> OpenApiParameter:
        """The parameter for the API document."""
        values = [sign + name for name in self.orders for sign in ("", "-")]
        description = (
            "Order of the list, `-` before a name for the largest first. Items without the value come last. A page "
            "starts behind the item of its cursor, where that item is now: values of running jobs change."
        )
        return OpenApiParameter(
            "sort", {"type": "string", "enum": values, "default": self.default}, description=description
        )

    def read(self, request: Request) -> tuple[str, bool]:
        """Return the name and whether the largest come first. Raises Invalid naming the parameter."""
        text = request.query_params.get("sort", "") or self.default
        name = text.removeprefix("-")
        if name not in self.orders:
            detail = f"sort={text[:40]!r} is none of {', '.join(self.orders)}, with or without '-' before it"
            raise refusal("sort", "sort", detail)
        return name, text.startswith("-")

    def paginate(self, request: Request, rows: QuerySet[Row], details: QuerySet[Row]) -> tuple[list[Row], str | None]:
        """Return one page of `rows` in the requested order, read from `details`, and the cursor of the next page.

        Raises Invalid for a wrong order, and for a cursor whose item no longer exists.
        """
        name, descending = self.read(request)
        if name == "created_at" and descending:
            return paginate(request, rows, details)
        cursor = _cursor(request, CURSOR)
        limit, by = LIMIT.read(request), self.orders[name]
        try:
            return read_sorted_page(rows, limit, cursor, details, by=by, descending=descending)
        except ObjectDoesNotExist:
            detail, remedy = f"cursor={cursor!r}: there is no such item", "start without a cursor"
            raise refusal("cursor", "cursor", detail, remedy) from None


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
