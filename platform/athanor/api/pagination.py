"""Keyset pages over ids, which sort by creation; a cursor is the last id that was seen."""

import re
from datetime import UTC, datetime
from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from athanor.core.errors import FieldProblem, Invalid

LARGEST_LIMIT = 200
DEFAULT_LIMIT = 50
CURSOR = re.compile(r"^[a-z]+_[0-9A-Z]{26}$")

LIMIT = OpenApiParameter(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT, "default": DEFAULT_LIMIT},
    description="Most items of a page.",
)
PAGED = [LIMIT, OpenApiParameter("cursor", OpenApiTypes.STR, description="`next_cursor` of the page before.")]

Row = TypeVar("Row", bound=Model)


def number(request: Request, name: str, default: int, *, lowest: int = 0, highest: int = 2**62) -> int:
    """A whole number of the query string, within bounds. Raises Invalid naming the parameter."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if not lowest <= value <= highest:
        detail = f"{name}={text!r} is not a whole number from {lowest} to {highest}"
        raise Invalid(
            "invalid_parameter", detail, remedy=f"mend {name}", problems=(FieldProblem(f"/{name}", "range", detail),)
        )
    return value


def time(request: Request, name: str) -> datetime | None:
    """A time of the query string. Raises Invalid naming the parameter."""
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        found = parse_datetime(text)
        if found is not None:
            # The database refuses zones of 16 hours and more.
            found = found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        found = None
    if found is None:
        detail = f"{name}={text!r} is no RFC 3339 time with a zone"
        raise Invalid(
            "invalid_parameter",
            detail,
            remedy="write it like 2026-01-31T12:00:00Z",
            problems=(FieldProblem(f"/{name}", "time", detail),),
        )
    return found


def page(request: Request, rows: QuerySet[Row], whole: QuerySet[Row] | None = None) -> tuple[list[Row], str | None]:
    """One page, newest first, and the cursor of the next.

    With `whole` the page is found first, by ids alone, which an index may answer, and then read as `whole` reads it.
    """
    limit = number(request, "limit", DEFAULT_LIMIT, lowest=1, highest=LARGEST_LIMIT)
    cursor = request.query_params.get("cursor")
    if cursor:
        if not CURSOR.match(cursor):
            detail = f"cursor={cursor!r} was not made by this list"
            raise Invalid(
                "invalid_parameter",
                detail,
                remedy="start without a cursor",
                problems=(FieldProblem("/cursor", "cursor", detail),),
            )
        rows = rows.filter(pk__lt=cursor)
    rows = rows.order_by("-pk")
    if whole is None:
        found = list(rows[: limit + 1])
        return found[:limit], str(found[limit - 1].pk) if len(found) > limit else None
    ids = [str(pk) for pk in rows.values_list("pk", flat=True)[: limit + 1]]
    found = list(whole.filter(pk__in=ids[:limit]).order_by("-pk"))
    return found, ids[limit - 1] if len(ids) > limit else None


def listed(items: list[Any], next_cursor: str | None = None) -> dict[str, Any]:
    return {"items": items, "next_cursor": next_cursor}
