"""Parse and validate a job spec, or report all its mistakes together."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from athanor.core.documents import load_yaml
from athanor.core.errors import FieldProblem, Invalid
from athanor.specs.v1 import JobSpec

Model = TypeVar("Model", bound=BaseModel)
MAX_SPEC_BYTES = 256 * 1024
# How pydantic names the branch of a union within a location; such a piece is no field of the spec.
UNION_BRANCH = re.compile(r"^(constrained-|literal\[|function-)")


def parse_yaml(text: bytes) -> Any:
    """Return the data of a YAML or JSON document. Raises Invalid with line and column."""
    if len(text) > MAX_SPEC_BYTES:
        raise Invalid("spec_too_large", f"the spec has {len(text)} bytes; the limit is {MAX_SPEC_BYTES}")
    try:
        written = text.decode()
    except UnicodeDecodeError as error:
        raise Invalid("not_utf8", f"the spec is not UTF-8 at byte {error.start}", remedy="save it as UTF-8") from error
    return load_yaml(written, "spec")


def parse_spec(data: Any) -> JobSpec:
    """Return the spec in `data`. Raises Invalid with every wrong field by JSON pointer."""
    if not isinstance(data, dict):
        raise Invalid(
            "invalid_spec",
            f"a job spec is a mapping of fields, not {type(data).__name__}",
            remedy="start from a preset: athanor presets",
        )
    return parsed(JobSpec, data, "invalid_spec", "spec")


def parsed(model: type[Model], data: Any, code: str, what: str) -> Model:
    """Validate `data` by the model. Raises Invalid with this code and every wrong field by JSON pointer."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = _merged(_problem(item, model) for item in error.errors())
        raise Invalid(
            code,
            f"{len(problems)} field{'s' if len(problems) > 1 else ''} of the {what} cannot be used",
            remedy="fix the fields listed in errors",
            problems=problems,
        ) from error


def digest(data: Any) -> str:
    """SHA-256 over canonical JSON."""
    return hashlib.sha256(canonical(data)).hexdigest()


def canonical(data: Any) -> bytes:
    """Return canonical JSON: equal data gives equal bytes."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _merged(problems: Iterable[FieldProblem]) -> tuple[FieldProblem, ...]:
    """One problem a pointer: a union reports each of its branches, and any of them would do."""
    by_pointer: dict[str, FieldProblem] = {}
    for problem in problems:
        first = by_pointer.get(problem.pointer)
        detail = f"{first.detail}; or: {problem.detail}" if first else problem.detail
        by_pointer[problem.pointer] = FieldProblem(problem.pointer, (first or problem).code, detail)
    return tuple(by_pointer.values())


def _problem(item: Any, model: type[BaseModel]) -> FieldProblem:
    location: tuple[int | str, ...] = tuple(p for p in item["loc"] if not UNION_BRANCH.match(str(p)))
    pointer = "".join(f"/{_escape(str(piece))}" for piece in location)
    value = item["input"]
    if item["type"] == "extra_forbidden":
        return FieldProblem(pointer, "unknown_field", _unknown_field(location, model))
    if item["type"] == "missing":
        return FieldProblem(pointer, "missing", "this field is required")
    if item["type"] == "literal_error":
        return FieldProblem(pointer, "not_a_choice", _not_a_choice(item, value))
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    message = item["msg"].removeprefix("Value error, ")
    return FieldProblem(pointer, item["type"], message if isinstance(value, dict) else f"{message}; got {shown}")


def _unknown_field(location: tuple[int | str, ...], model: type[BaseModel]) -> str:
    name = str(location[-1])
    known = _fields_at(location[:-1], model)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if nearest:
        return f"unknown field {name!r}; did you mean {nearest[0]!r}?"
    return f"unknown field {name!r}; known here: {', '.join(known)}"


def _not_a_choice(item: Any, value: Any) -> str:
    expected = str(item["ctx"]["expected"])
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    nearest = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"{value!r} is none of {', '.join(choices)}{hint}"


def _fields_at(path: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """Return the field names of the model at `path` below this one.

    Below a list or a mapping, the next piece of the path is its index or key.
    """
    pieces = iter(path)
    for piece in pieces:
        field = model.model_fields.get(str(piece))
        found = _model_in(field.annotation) if field else None
        if found is None or field is None:
            return []
        if get_origin(field.annotation) in (list, dict):
            next(pieces, None)
        model = found
    return sorted(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


def _escape(piece: str) -> str:
    return piece.replace("~", "~0").replace("/", "~1")
