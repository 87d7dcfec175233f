"""Parse and validate a job spec, or report all its mistakes together."""

import copy
import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from athanor.core.documents import load_yaml
from athanor.core.errors import FieldProblem, Invalid
from athanor.specs.v1 import JobSpec
from trainer.contract.base import FieldConflictError

Model = TypeVar("Model", bound=BaseModel)
MAX_SPEC_BYTES = 256 * 1024
# How pydantic names the branch of a union within a location; such a piece is no field of the spec.
UNION_BRANCH = re.compile(r"^(constrained-|literal\[|function-)")
# Each round of `check` finds the conflicts of one more level of nested models.
MAX_ROUNDS = 8
EVALUATED = re.compile(r"^/training/(?:data/mixture/(?P<task>\d+)|(?P<field>model/base|[a-z_]+)[^/]*)")
OF_SOURCE_JOB = re.compile(r"^/training.*")
Location = tuple[int | str, ...]
"""Path to a value in a document: names of fields and indexes of lists."""


@dataclass(frozen=True)
class Checked(Generic[Model]):
    """A validated document, or its mistakes.

    `value` is None if no valid document could be made. If there are `problems`, it has valid values in place of the
    invalid ones, which are at the pointers `replaced`: it serves to look for further mistakes elsewhere.
    """

    value: Model | None
    problems: tuple[FieldProblem, ...]
    replaced: tuple[str, ...]

    def unaffected(self, problems: Iterable[FieldProblem]) -> list[FieldProblem]:
        """Return the problems of `value` that are not about a replaced field."""
        return [each for each in problems if not any(_overlap(each.pointer, pointer) for pointer in self.replaced)]


def at_written_fields(spec: JobSpec, problems: Iterable[FieldProblem]) -> list[FieldProblem]:
    """Return the problems of a spec at the fields that its author wrote: an evaluation, a replay or an export, not
    what it becomes."""
    for name in ("replay", "export"):
        if getattr(spec, name) is not None:
            return [replace(each, pointer=OF_SOURCE_JOB.sub(f"/{name}/job", each.pointer)) for each in problems]
    if spec.evaluation is None:
        return list(problems)
    return [replace(each, pointer=EVALUATED.sub(_evaluation_field, each.pointer)) for each in problems]


def _evaluation_field(match: re.Match[str]) -> str:
    fields = {"model/base": "model", "model": "model", "parallelism": "parallelism", "precision": "precision"}
    if match["task"] is not None:
        return f"/evaluation/tasks/{match['task']}"
    return f"/evaluation/{fields.get(match['field'], 'sequence_length')}"


def parse_yaml(text: bytes) -> Any:
    """Return the data of a YAML or JSON document. Raises Invalid with line and column."""
    if len(text) > MAX_SPEC_BYTES:
        raise Invalid(
            "spec_too_large",
            f"the spec is larger than {MAX_SPEC_BYTES} bytes",
            remedy="write shorter lists, and store what is no setting as a data set (POST /datasets)",
        )
    try:
        written = text.decode()
    except UnicodeDecodeError as error:
        raise Invalid("not_utf8", f"the spec is not UTF-8 at byte {error.start}", remedy="save it as UTF-8") from error
    return load_yaml(written, "spec")


def parse_spec(data: Any) -> JobSpec:
    """Return the spec in `data`. Raises Invalid with every wrong field by JSON pointer."""
    return _valid(check_spec(data), "invalid_spec", "spec")


def check_spec(data: Any) -> Checked[JobSpec]:
    """Check the spec in `data`. Raises Invalid if it is no mapping."""
    if not isinstance(data, dict):
        raise Invalid(
            "invalid_spec",
            f"a job spec is a mapping of fields, not {type(data).__name__}",
            remedy="start from a preset: athanor presets",
        )
    return check(JobSpec, data)


def parsed(model: type[Model], data: Any, code: str, what: str) -> Model:
    """Validate `data` by the model. Raises Invalid with this code and every wrong field by JSON pointer."""
    return _valid(check(model, data), code, what)


def invalid(problems: tuple[FieldProblem, ...], code: str, what: str) -> Invalid:
    """Return the error for a document with these problems."""
    return Invalid(
        code,
        f"{len(problems)} field{'s' if len(problems) > 1 else ''} of the {what} cannot be used",
        remedy="fix the fields listed in errors",
        problems=problems,
    )


def check(model: type[Model], data: Any) -> Checked[Model]:
    """Validate `data` by the model, and find all mistakes.

    pydantic checks what lies between fields only when each of them is valid. So invalid fields are replaced by valid
    values and the rest is validated again; what conflicts with a replaced field is not reported.
    """
    problems: list[FieldProblem] = []
    replaced: list[str] = []
    for _ in range(MAX_ROUNDS):
        try:
            return Checked(model.model_validate(data), _merged(problems), tuple(replaced))
        except ValidationError as error:
            data, before = copy.deepcopy(data), list(replaced)
            for item in error.errors():
                for problem, location, others in _problems(item, model):
                    pointers = [problem.pointer, *others]
                    if not any(_overlap(pointer, other) for pointer in pointers for other in before):
                        problems.append(problem)
                    replaced.append(problem.pointer)
                    _repair(data, location, model, missing=item["type"] == "missing")
    return Checked(None, _merged(problems), tuple(replaced))


def _valid(checked: Checked[Model], code: str, what: str) -> Model:
    if checked.problems or checked.value is None:
        raise invalid(checked.problems, code, what)
    return checked.value


def _overlap(first: str, second: str) -> bool:
    """Return whether one JSON pointer is the other or lies below it."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


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


def _location(item: Any) -> Location:
    return tuple(piece for piece in item["loc"] if not UNION_BRANCH.match(str(piece)))


def _pointer(location: Location) -> str:
    return "".join(f"/{_escape(str(piece))}" for piece in location)


def _problems(item: Any, model: type[BaseModel]) -> Iterator[tuple[FieldProblem, Location, list[str]]]:
    """Yield the problems of an error of pydantic, each with its location and the pointers of fields it depends on."""
    location = _location(item)
    error = (item.get("ctx") or {}).get("error")
    if not isinstance(error, FieldConflictError):
        yield _problem(item, location, model), location, []
        return
    for conflict in error.conflicts:
        at = (*location, *filter(None, conflict.at.split(".")))
        others = [_pointer((*location, *other.split("."))) for other in conflict.others]
        yield FieldProblem(_pointer(at), "value_error", conflict.message), at, others


def _repair(data: Any, location: Location, model: type[BaseModel], *, missing: bool) -> None:
    """Remove the value at `location`, so that its default applies. Insert an example where a value is `missing`."""
    *above, name = location or ("",)
    for piece in above:
        inner: Any = data.get(piece) if isinstance(data, dict) else None
        data = data[piece] if isinstance(data, list) and isinstance(piece, int) else inner
    if missing and isinstance(data, dict):
        field = _field_at(location, model)
        data[name] = copy.deepcopy(field.examples[0]) if field is not None and field.examples else {}
    elif isinstance(data, dict):
        data.pop(name, None)
    elif isinstance(data, list) and isinstance(name, int):
        data[name] = None


def _problem(item: Any, location: Location, model: type[BaseModel]) -> FieldProblem:
    pointer, value = _pointer(location), item["input"]
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


def _field_at(path: Location, model: type[BaseModel]) -> FieldInfo | None:
    for piece in path[:-1]:
        field = model.model_fields.get(str(piece))
        found = _model_in(field.annotation) if field else None
        if found is None:
            return None
        model = found
    return model.model_fields.get(str(path[-1]))


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
