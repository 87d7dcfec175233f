"""Only `jobs/transitions.py` writes the status of a job or an attempt, whatever way of writing a field is taken."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TRANSITIONS = REPOSITORY / "platform" / "athanor" / "jobs" / "transitions.py"
# They know no row of a job: the contracts in pyproject.toml forbid them Django.
WITHOUT_ROWS = ("platform/athanor/cli", "platform/athanor/backends")
# Functions that write fields by computed names, and the model of their rows, which is neither Job nor Attempt.
WRITES_BY_NAME = {
    "platform/athanor/alerts/services.py:change": "AlertRule",
    "platform/athanor/alerts/services.py:change_preference": "NotificationPreference",
    "platform/athanor/budgets/ledger.py:_move": "BudgetPeriod",
    "platform/athanor/budgets/services.py:change": "Budget",
    "platform/athanor/clusters/services.py:store_health_check": "ClusterHealthCheck",
    "platform/athanor/fleet/clusters.py:change": "Cluster",
    "platform/athanor/fleet/clusters.py:put_pool": "Pool",
    "platform/athanor/quotas/services.py:_write": "QuotaNode",
    "platform/athanor/quotas/services.py:change_settings": "AdmissionSettings",
    "platform/athanor/webhooks/services.py:change": "Webhook",
}
STATUS_IN_SQL = re.compile(r"\bUPDATE\s+(ONLY\s+)?\"?jobs_(job|attempt)\b", re.IGNORECASE)


def writes(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (line, function, whether the name is written out) of each write of `status`, or of a field whose name is
    computed."""
    yield from _writes_below(ast.parse(source), "")


def _writes_below(node: ast.AST, function: str) -> Iterator[tuple[int, str, bool]]:
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        inside = child.name if is_function else function
        named = set() if _is_of_another_model(child) else _names_written(child)
        if named is None or "status" in named:
            assert isinstance(child, ast.expr)
            yield child.lineno, inside, named is not None
        yield from _writes_below(child, inside)


def _names_written(node: ast.AST) -> set[str] | None:
    """Return the fields that `node` itself writes; None where their names are computed."""
    match node:
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return {name}
        case ast.Call(func=ast.Name(id="setattr"), args=[_, name, _]):
            return _constants([name])
        case ast.Call(func=ast.Attribute(attr="__setattr__"), args=[*_, name, _]):
            return _constants([name])
        case ast.Call(func=ast.Attribute(attr="update" | "aupdate"), keywords=keywords):
            return _keywords(keywords)
        case ast.Call(func=ast.Attribute(attr="update_or_create" | "aupdate_or_create"), keywords=keywords):
            return _defaults(keywords)
        case ast.Call(func=ast.Attribute(attr="bulk_update" | "abulk_update"), args=[_, fields, *_]):
            return _items(fields)
        case ast.Call(func=ast.Attribute(attr="bulk_update" | "bulk_create" | "abulk_create"), keywords=keywords):
            fields = [each.value for each in keywords if each.arg in ("fields", "update_fields")]
            return _items(fields[0]) if fields else set()
        case ast.Constant(value=str(text)) if STATUS_IN_SQL.search(text):
            return {"status"}
        case _:
            return set()


def _is_of_another_model(node: ast.AST) -> bool:
    """Return whether `node` is a call like `Budget.objects.filter(...).update(...)`, which names its model."""
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Attribute) and node.attr == "objects" and isinstance(node.value, ast.Name):
            return node.value.id not in ("Job", "Attempt")
        node = node.func if isinstance(node, ast.Call) else node.value
    return False


def _keywords(keywords: list[ast.keyword]) -> set[str] | None:
    names = {each.arg for each in keywords if each.arg is not None}
    if "status" in names:
        return names
    spread = [_items(each.value) for each in keywords if each.arg is None]
    return None if None in spread else names.union(*(each for each in spread if each))


def _defaults(keywords: list[ast.keyword]) -> set[str] | None:
    given = [_items(each.value) for each in keywords if each.arg in ("defaults", "create_defaults")]
    return None if None in given else set().union(*(each for each in given if each))


def _items(node: ast.expr) -> set[str] | None:
    """Return the strings of a literal list, or the keys of a literal mapping."""
    match node:
        case ast.List(elts=found) | ast.Tuple(elts=found) | ast.Set(elts=found):
            return _constants(found)
        case ast.Dict(keys=found):
            return _constants(found)
        case _:
            return None


def _constants(nodes: list[ast.expr] | list[ast.expr | None]) -> set[str] | None:
    if all(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes):
        return {node.value for node in nodes}
    return None


def test_only_transitions_writes_a_status() -> None:
    named, computed = [], set()
    for folder in ("platform/athanor", "workers"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            short = path.relative_to(REPOSITORY).as_posix()
            if path == TRANSITIONS or "migrations" in path.parts or short.startswith(WITHOUT_ROWS):
                continue
            for line, function, is_named in writes(path.read_text()):
                if is_named:
                    named.append(f"{short}:{line}")
                else:
                    computed.add(f"{short}:{function}")
    assert named == [], "call athanor.jobs.transitions instead"
    assert computed == set(WRITES_BY_NAME), "list each function that computes names of fields, with what it writes"


@pytest.mark.parametrize(
    "planted",
    [
        "job.status = 'failed'",
        "job.status: str = 'failed'",
        "job.reason, job.status = '', 'failed'",
        "for job.status in statuses: pass",
        "setattr(job, 'status', 'failed')",
        "setattr(job, name, 'failed')",
        "object.__setattr__(job, name, 'failed')",
        "rows.update(status='failed')",
        "Job.objects.filter(pk=pk).update(status='failed')",
        "Job.objects.update(**changes)",
        "rows.update(**{'status': 'failed'})",
        "Attempt.objects.update_or_create(pk=pk, defaults={'status': 'ended'})",
        "Attempt.objects.update_or_create(pk=pk, defaults=facts)",
        "Job.objects.bulk_update(jobs, ['reason', 'status'])",
        "Job.objects.bulk_update(jobs, fields=FIELDS)",
        "Attempt.objects.bulk_create(rows, update_conflicts=True, update_fields=fields)",
        "cursor.execute('UPDATE jobs_job SET ' + 'status = %s')",
    ],
)
def test_every_way_to_write_a_status_is_seen(planted: str) -> None:
    assert list(writes(f"def planted(job, changes):\n    {planted}\n"))


@pytest.mark.parametrize(
    "harmless",
    [
        "job.reason = job.status",
        "rows.update(health='ok')",
        "rows.update(**{'health': 'ok'})",
        "facts.update({'status': 'failed'})",
        "Budget.objects.filter(pk=pk).update(**changes)",
        "Job.objects.bulk_update(jobs, ['health'])",
        "Job.objects.filter(status='failed')",
        "cursor.execute('SELECT status FROM jobs_job')",
    ],
)
def test_reading_a_status_and_writing_other_fields_is_no_offence(harmless: str) -> None:
    assert list(writes(f"def planted(job, changes):\n    {harmless}\n")) == []
