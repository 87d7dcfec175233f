"""Pages of a query by keyset: a page starts after the last key of the page before it."""

from typing import TypeVar

from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)


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
