"""Every event type that the trainer emits is one that the platform accepts from a compute node, and none is idle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import trainer
from trainer.contract.events import AGENT_EVENT_TYPES, AGENT_EVENTS

TRAINER = Path(trainer.__file__).parent
# Functions that make a ProgressEvent of a type they are given, and the position of that type in a call.
EMITTERS = {"event": 0, "event_once": 1, "_report_event": 0, "_report_sink_event": 0, "report_event": 0}


def _emitted(path: Path) -> Iterator[tuple[str, int, set[str]]]:
    """Types in calls of emitters, with the fields of their data; "?" for one that is not written out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in EMITTERS]
    passing_on = {id(call) for function in inside for call in ast.walk(function)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in EMITTERS and len(node.args) > EMITTERS[name]:
            kind = node.args[EMITTERS[name]]
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str):
                yield kind.value, node.lineno, {str(keyword.arg) for keyword in node.keywords if keyword.arg != "at"}
            elif id(node) not in passing_on:
                yield "?", node.lineno, set()


def _made(path: Path) -> Iterator[tuple[str, int]]:
    """Functions that construct a ProgressEvent."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ProgressEvent":
                yield function.name, node.lineno


def _found() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(TRAINER.rglob("*.py")):
        for kind, line, _ in _emitted(path):
            found.setdefault(kind, []).append(f"{path.relative_to(TRAINER)}:{line}")
    return found


def test_the_trainer_emits_exactly_the_types_that_the_platform_accepts() -> None:
    found = _found()
    # A LogFormatter takes an event, not its type.
    unclear = found.pop("?", [])
    known = ("standalone/terminal.py", "reporting/reporter.py")
    assert [where for where in unclear if not where.startswith(known)] == [], "write the type out, so that it is found"
    assert set(found) == AGENT_EVENT_TYPES, found


def test_an_event_has_the_fields_of_its_description() -> None:
    for path in sorted(TRAINER.rglob("*.py")):
        for kind, line, fields in _emitted(path):
            if kind != "?":
                assert fields == set(AGENT_EVENTS[kind].fields), f"{path.relative_to(TRAINER)}:{line}: {kind}"


def test_events_are_made_nowhere_else() -> None:
    makers = {(str(path.relative_to(TRAINER)), name) for path in TRAINER.rglob("*.py") for name, _ in _made(path)}
    assert {name for _, name in makers} - {"_make_event_reporter"} <= set(EMITTERS), makers
