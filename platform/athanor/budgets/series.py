"""Points of price and carbon series: read from CSV or JSON, and stored."""

import csv
import io
import json
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from django.db import transaction
from django.utils.dateparse import parse_datetime

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.budgets.models import Series, SeriesPoint
from athanor.budgets.tariff import MICRO
from athanor.core import task_triggers
from athanor.core.errors import FieldProblem, Invalid

MAX_POINTS = 100_000
MAX_PROBLEMS = 20
SCALES = {Series.Kind.PRICE: MICRO, Series.Kind.CARBON: 1000}
MAX_VALUE = Decimal(10**6)


def from_csv(kind: str, text: str) -> list[SeriesPoint]:
    """Read lines of a time and a value; a first line that begins with `time` is a header.

    Raise Invalid with the lines that are not valid.
    """
    rows = list(csv.reader(io.StringIO(text.lstrip("\ufeff"))))
    skip = 1 if rows and rows[0] and rows[0][0].strip().lower() == "time" else 0
    numbered = [(number, row) for number, row in enumerate(rows, 1) if row and number > skip]
    problems = [
        FieldProblem(f"/line/{number}", "columns", f"line {number}: {len(row)} columns; write time,value")
        for number, row in numbered
        if len(row) != 2
    ]
    _refuse(problems)
    return _points(
        kind, ((f"/line/{number}", f"line {number}", row[0].strip(), row[1].strip()) for number, row in numbered)
    )


def from_json(kind: str, items: Any, time_field: str = "time", value_field: str = "value") -> list[SeriesPoint]:
    """Read a list of objects with a time and a value. Raise Invalid with the items that are not valid."""
    if not isinstance(items, list):
        detail = "a list of objects like {time, value} is needed"
        _refuse([FieldProblem("", "type", detail)])
    problems = [
        FieldProblem(f"/{index}", "fields", f"item {index} has not both {time_field!r} and {value_field!r}")
        for index, item in enumerate(items)
        if not isinstance(item, dict) or time_field not in item or value_field not in item
    ]
    _refuse(problems)
    return _points(
        kind, ((f"/{index}", f"item {index}", item[time_field], item[value_field]) for index, item in enumerate(items))
    )


def from_answer(series: Series, body: str) -> list[SeriesPoint]:
    """Read a provider's response by the series' mapping.

    `items` is the path to the list (`data.points`; empty: the response itself), `time` and `value` its fields.
    """
    try:
        found = json.loads(body, parse_float=Decimal)
    except ValueError as error:
        raise Invalid("invalid_series", f"the answer is no JSON: {error}", remedy="fix url") from error
    for key in filter(None, str(series.mapping.get("items", "")).split(".")):
        if not isinstance(found, dict) or key not in found:
            detail = f"the answer has no {series.mapping['items']!r}"
            raise Invalid("invalid_series", detail, remedy="fix mapping.items")
        found = found[key]
    names = (str(series.mapping.get("time", "time")), str(series.mapping.get("value", "value")))
    return from_json(series.kind, found, *names)


def store(series: Series, points: Iterable[SeriesPoint]) -> int:
    """Store points; one with an existing time replaces it. Return the number of points."""
    rows = list({point.time: point for point in points}.values())
    for row in rows:
        row.series = series
    SeriesPoint.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["series", "time"], update_fields=["value"], batch_size=5000
    )
    task_triggers.trigger_after_commit(task_triggers.METER)
    task_triggers.trigger_after_commit(task_triggers.ADMIT)
    return len(rows)


def upload(series: Series, points: list[SeriesPoint], actor: User) -> int:
    """Store points that an administrator sends, and record it in the audit trail. Return their number."""
    with transaction.atomic():
        count = store(series, points)
        after = {"points": count, "first": points[0].time.isoformat(), "last": points[-1].time.isoformat()}
        audit.record("series.upload", actor=actor, target=("series", series.id), after=after)
    return count


def _points(kind: str, found: Iterable[tuple[str, str, Any, Any]]) -> list[SeriesPoint]:
    """Return the points of `found`: pointer and name of each entry, its time and its value. Raise Invalid."""
    points, problems = [], []
    for pointer, name, time, value in found:
        moment = _time(time)
        if moment is None:
            detail = f"{name}: {time!r} is no RFC 3339 time with a zone, such as 2026-01-31T12:00:00Z"
            problems.append(FieldProblem(pointer, "time", detail))
        number = _number(value)
        if number is None:
            problems.append(FieldProblem(pointer, "value", f"{name}: {value!r} is no number from 0 to {MAX_VALUE}"))
        if moment is not None and number is not None:
            points.append(SeriesPoint(time=moment, value=int((number * SCALES[Series.Kind(kind)]).to_integral_value())))
        if len(problems) >= MAX_PROBLEMS or len(points) > MAX_POINTS:
            break
    if len(points) > MAX_POINTS:
        problems.append(FieldProblem("", "too_many", f"more than {MAX_POINTS} points; send fewer per request"))
    if not points and not problems:
        problems.append(FieldProblem("", "empty", "there is no point in it"))
    _refuse(problems)
    return sorted(points, key=lambda point: point.time)


def _time(value: Any) -> datetime | None:
    try:
        found = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal)):
        return None
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return None
    return found if found.is_finite() and 0 <= found <= MAX_VALUE else None


def _refuse(problems: list[FieldProblem]) -> None:
    if problems:
        raise Invalid(
            "invalid_series", problems[0].detail, remedy="fix the lines listed in errors", problems=tuple(problems)
        )


def points_of(series: Series, after: datetime, before: datetime | None, limit: int) -> list[SeriesPoint]:
    """Return up to `limit` points of a series at or after `after` and before `before`, oldest first."""
    rows = SeriesPoint.objects.filter(series=series, time__gte=after).order_by("time")
    if before is not None:
        rows = rows.filter(time__lt=before)
    return list(rows[:limit])
