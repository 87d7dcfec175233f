"""Pages of a query by keyset: a page starts after the last key of the page before it."""

from typing import Any, TypeVar

from django.db.models import F, Model, Q, QuerySet
from django.db.models.expressions import Combinable

Row = TypeVar("Row", bound=Model)
Orders = dict[str, Combinable]


def read_page(
    rows: QuerySet[Row],
    limit: int,
    cursor: str | int | None = None,
    *,
    key: str = "pk",
    descending: bool = True,
    details: QuerySet[Row] | None = None,
) -> tuple[list[Row], str | None]:
    """Return up to `limit` rows after `cursor` in the order of `key`, and the next cursor, None on the last page.

    With `details` the page is first found by primary keys alone, which an index may answer, and then read from
    `details`; `key` must be the primary key.
    """
    if cursor:
        rows = rows.filter(**{f"{key}__{'lt' if descending else 'gt'}": cursor})
    order = f"-{key}" if descending else key
    rows = rows.order_by(order)
    if details is None:
        found = list(rows[: limit + 1])
        return found[:limit], str(getattr(found[limit - 1], key)) if len(found) > limit else None
    ids = [str(pk) for pk in rows.values_list("pk", flat=True)[: limit + 1]]
    page = list(details.filter(pk__in=ids[:limit]).order_by(order))
    return page, ids[limit - 1] if len(ids) > limit else None


def read_sorted_page(
    rows: QuerySet[Row],
    limit: int,
    cursor: str,
    details: QuerySet[Row],
    *,
    by: Combinable,
    descending: bool,
) -> tuple[list[Row], str | None]:
    """Return up to `limit` rows in the order of `by`, from `details`, and the key of the last, None on the last page.

    Rows of equal value follow by descending primary key; rows without a value come last in either order. The page
    starts behind the row with the key `cursor`, at the place that its value has now; an empty one starts at the
    beginning. It is found by sorting all of `rows`. Raises DoesNotExist if `details` has no row of that key.
    """
    valued = rows.annotate(sort_value=by)
    if cursor:
        value = details.filter(pk=cursor).values_list(by, flat=True).get()
        valued = valued.filter(_behind(value, cursor, descending=descending))
    order = F("sort_value").desc(nulls_last=True) if descending else F("sort_value").asc(nulls_last=True)
    keys = list(valued.order_by(order, "-pk").values_list("pk", flat=True)[: limit + 1])
    found = details.in_bulk(keys[:limit])
    page = [found[key] for key in keys[:limit] if key in found]  # one may have been deleted in between
    return page, str(keys[limit - 1]) if len(keys) > limit else None


def _behind(value: Any, key: Any, *, descending: bool) -> Q:
    if value is None:
        return Q(sort_value__isnull=True, pk__lt=key)
    further = Q(sort_value__lt=value) if descending else Q(sort_value__gt=value)
    return further | Q(sort_value=value, pk__lt=key) | Q(sort_value__isnull=True)
