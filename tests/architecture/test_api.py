"""Views parse, authorise, call a service and render: they query no database, and read bodies in one way."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
API = REPOSITORY / "platform" / "athanor" / "api"
# Methods of managers, querysets and rows. What dictionaries, lists and services have too is found by its receiver.
QUERY_METHODS = frozenset(
    {
        *("aggregate", "annotate", "bulk_create", "bulk_update", "defer", "distinct", "exclude", "filter"),
        *("get_or_create", "in_bulk", "objects", "only", "order_by", "prefetch_related", "select_for_update"),
        *("select_related", "update_or_create", "using", "values_list"),
    }
)
ROW_METHODS = frozenset({"save", "refresh_from_db", "full_clean", "all", "exists", "first", "last", "latest"})
FROM_MODELS = {"Model", "QuerySet"}  # for annotations
FROM_DB = {"DataError", "DatabaseError", "InterfaceError", "OperationalError", "close_old_connections", "connection"}
BODY_ATTRIBUTES = {"data", "body", "stream", "FILES", "POST"}
BODY_READERS = {"bodies.py", "agent/messages.py"}


def queries(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each use of the ORM."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name) if name in QUERY_METHODS | ROW_METHODS:
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="transaction"), attr=name):
                yield node.lineno, f"transaction.{name}"
            case ast.ImportFrom(module="django.db", names=names):
                yield from ((node.lineno, each.name) for each in names if each.name not in FROM_DB)
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("django.db.models"):
                yield from ((node.lineno, each.name) for each in names if each.name not in FROM_MODELS)


def body_reads(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the attribute of each access to a request's body."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="request") | ast.Attribute(attr="_request" | "request"), attr=name):
                if name in BODY_ATTRIBUTES:
                    yield node.lineno, f"request.{name}"


def modules() -> list[Path]:
    found = sorted(API.rglob("*.py"))
    assert len(found) > 60, "the folder of the API has moved"
    return found


def test_the_api_queries_no_database() -> None:
    used = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for path in modules()
        for line, name in queries(path.read_text())
    ]
    assert used == [], "move the query to a selector or service of the package that owns the model"


def test_bodies_of_requests_are_read_in_one_place() -> None:
    read = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for path in modules()
        if str(path.relative_to(API)) not in BODY_READERS
        for line, name in body_reads(path.read_text())
    ]
    assert read == [], "use athanor.api.bodies"


@pytest.mark.parametrize(
    "planted",
    [
        "Job.objects.get(pk=job_id)",
        "rows.filter(team=team)",
        "team.jobs.all()",
        "row.save(update_fields=['name'])",
        "jobs_of(who).select_related('progress')",
        "with transaction.atomic(): pass",
        "from django.db import transaction",
        "from django.db.models import Q",
        "from django.db.models.functions import Now",
    ],
)
def test_a_planted_query_is_found(planted: str) -> None:
    assert list(queries(planted)) != []


@pytest.mark.parametrize(
    "harmless",
    ["services.create(team)", "headers.update(more)", "from django.db.models import QuerySet", "budgets.delete(row)"],
)
def test_a_call_of_a_service_is_no_query(harmless: str) -> None:
    assert list(queries(harmless)) == []


@pytest.mark.parametrize("planted", ["request.data", "request.body", "self.request.data", "request._request.body"])
def test_a_planted_read_of_a_body_is_found(planted: str) -> None:
    assert list(body_reads(planted)) != []
