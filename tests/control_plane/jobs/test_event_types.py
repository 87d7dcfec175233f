"""The table of the platform's event types equals what the code writes: every type, and every field of its data."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import athanor
from athanor.jobs.event_types import PLATFORM_EVENTS
from trainer.contract.events import AGENT_EVENTS

PLATFORM = Path(next(iter(athanor.__path__)))
# Functions that write an event of a type they are given: the positions of the type and of the data.
WRITERS = {"append": (1, 5), "append_same": (1, 3), "first": (1, 5)}
FROM_AN_AGENT = "telemetry/ingest.py"  # passes on what AGENT_EVENT_TYPES allows


class Written(NamedTuple):
    place: str
    type: str
    fields: frozenset[str]


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PLATFORM.rglob("*.py")):
        if not {"cli", "migrations"} & set(path.parts):
            yield str(path.relative_to(PLATFORM)), ast.parse(path.read_text())


def written() -> Iterator[Written]:
    for path, tree in sources():
        constants = {
            each.targets[0].id: each.value.value
            for each in tree.body
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
            and isinstance(each.value, ast.Constant)
        }  # fmt: skip
        own = passing_on(tree)
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                found = type_and_data(call, own)
                if found is None or function.name in own or path == "jobs/events.py":
                    continue
                kind, data = found
                place = f"{path}:{call.lineno}"
                name = kind.value if isinstance(kind, ast.Constant) else constants.get(getattr(kind, "id", ""), "?")
                yield Written(place, str(name), frozenset(keys_of(data, function)))


def passing_on(tree: ast.Module) -> dict[str, tuple[int, int]]:
    """Return the functions of a file that write an event of a given type, with the positions of their type and data."""
    found = {}
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        names = [each.arg for each in function.args.args]
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            kind, data = type_and_data(call, {}) or (None, None)
            if isinstance(kind, ast.Name) and kind.id in names:
                position = names.index(data.id) if isinstance(data, ast.Name) and data.id in names else len(names)
                found[function.name] = (names.index(kind.id), position)
    return found


def type_and_data(call: ast.Call, own: dict[str, tuple[int, int]]) -> tuple[ast.expr, ast.expr | None] | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    keywords = {each.arg: each.value for each in call.keywords}
    if ast.unparse(call.func).startswith("transitions.") and "data" in keywords:  # a move of a job
        return ast.Constant("job.status"), keywords.get("data")
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "events" and name in WRITERS:
        kind, data = WRITERS[name]
    elif isinstance(call.func, ast.Name) and name in own:
        kind, data = own[name]
    else:
        return None
    return call.args[kind], keywords.get("data") or (call.args[data] if data < len(call.args) else None)


def keys_of(data: ast.expr | None, function: ast.FunctionDef) -> set[str]:
    """Return the keys of a literal dictionary, or of the one last assigned to the name in the same function."""
    if isinstance(data, ast.Name):
        before = [each for each in ast.walk(function) if isinstance(each, ast.Assign)
                  and ast.unparse(each.targets[0]) == data.id and each.lineno < data.lineno]  # fmt: skip
        return keys_of(max(before, key=lambda each: each.lineno).value, function) if before else set()
    keys = (each for node in ast.walk(data) if isinstance(node, ast.Dict) for each in node.keys) if data else ()
    return {str(key.value) for key in keys if isinstance(key, ast.Constant)}


def test_every_type_that_is_written_is_in_the_table() -> None:
    unclear = [each.place for each in written() if each.type == "?" and not each.place.startswith(FROM_AN_AGENT)]
    assert unclear == [], "write the type out, so that it is found"
    types = {each.type for each in written()} - {"?"}
    requested = {"job.pause_requested", "job.resume_requested", "job.stop_requested"}
    assert requested <= types
    assert types == set(PLATFORM_EVENTS)


def test_every_field_that_is_written_is_in_the_table() -> None:
    for each in written():
        if each.type != "?":
            unknown = each.fields - set(PLATFORM_EVENTS[each.type].fields)
            assert not unknown, f"{each.place}: {each.type} has fields that its description lacks: {unknown}"


def test_the_table_has_no_field_that_nobody_writes() -> None:
    found: dict[str, set[str]] = {}
    for each in written():
        found.setdefault(each.type, set()).update(each.fields)
    found["job.submitted"].add("forked_from")  # of `_fork` in jobs/services.py
    assert {name: set(event.fields) for name, event in PLATFORM_EVENTS.items()} == {
        name: found[name] for name in PLATFORM_EVENTS
    }


def test_no_type_is_both_an_agents_and_the_platforms() -> None:
    assert not set(PLATFORM_EVENTS) & set(AGENT_EVENTS)
