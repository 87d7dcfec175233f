"""JSON schemas (draft 2020-12) of generated answers: which of them can be used, and whether an answer is valid by one.

Of a schema only references within it are followed: nothing is fetched. All of its regular expressions are compiled, and
all of its references are resolved, when it is checked.
"""

import json
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import islice
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SCHEMA_BYTES = 8192
"""Of a schema as JSON without spaces."""
MAX_SCHEMA_LEVELS = 32
MAX_ANSWER_LEVELS = 64
"""An answer in which lists and objects nest deeper is not valid by any schema."""
# Keywords of draft 2020-12 with subschemas: for other values of the answer (properties, items) or for the same one.
_OF_PARTS = (
    "additionalProperties", "contains", "contentSchema", "items", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties",
)  # fmt: skip
_LISTS_OF_PARTS = ("prefixItems", "$defs", "definitions", "patternProperties", "properties")
_OF_SAME = ("not", "if", "then", "else")
_LISTS_OF_SAME = ("allOf", "anyOf", "oneOf", "dependentSchemas")
_REFERENCES = ("$ref", "$dynamicRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")

Place = tuple[str, ...]
"""The keys and indexes on the way to a value in a schema."""


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Return why a schema cannot be used, with the place in it and a remedy; None if it can."""
    return (
        _value_problem(schema)
        or _size_problem(schema)
        or _checked(json.dumps(schema, sort_keys=True, separators=(",", ":")))
    )


def compile_schema(schema: dict[str, Any]) -> Any:
    """Return the validator of a schema without problems, for `is_valid_answer`."""
    content = {name: value for name, value in schema.items() if name != "$id"}  # no reference needs it
    return Draft202012Validator(content, registry=Registry())


def is_valid_answer(answer: str, validator: Any) -> bool:
    """Return whether an answer is JSON, perhaps in one fence of Markdown, and valid by the schema.

    Raises RecursionError if the schema has too many levels for Python.
    """
    try:
        value = parse_answer(answer)
    except ValueError:
        return False
    return bool(validator.is_valid(value))


def parse_answer(answer: str) -> Any:
    """Return the value of an answer that is JSON, or JSON in one fence (```json or ``` on its first line, ``` at its
    end) with nothing before and after it but white space.

    Raises ValueError for other answers, numbers beyond the range of 64-bit floating point, and more than
    MAX_ANSWER_LEVELS levels.
    """
    text = answer.strip(" \t\r\n")
    language, line_break, fenced = text[3:-3].partition("\n")
    if text.startswith("```") and text.endswith("```") and line_break and language.strip() in ("json", ""):
        text = fenced
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_bounded_float, parse_int=_bounded_int)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error
    if any(len(place) >= MAX_ANSWER_LEVELS for place, inner in _values(value) if isinstance(inner, list | dict)):
        raise ValueError("it nests too deeply")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _bounded_float(text: str) -> float:
    value = float(text)
    if not _is_in_range(value):
        raise ValueError(f"{text} is out of range")
    return value


def _bounded_int(text: str) -> int:
    value = int(text)
    if not _is_in_range(value):
        raise ValueError(f"{text[:20]}... is out of range")
    return value


def _is_in_range(number: float) -> bool:
    return abs(number) <= sys.float_info.max


def _values(value: Any) -> Iterator[tuple[Place, Any]]:
    """Yield a value and each one within it, with its place, down to MAX_ANSWER_LEVELS + 1 levels; without recursion."""
    stack: list[tuple[Place, Any]] = [((), value)]
    while stack:
        place, found = stack.pop()
        yield place, found
        if len(place) <= MAX_ANSWER_LEVELS:
            stack += [((*place, key), inner) for key, inner in _items(found)]


def _items(value: Any) -> list[tuple[str, Any]]:
    """Return the values of a list or an object with their keys."""
    if isinstance(value, dict):
        return list(value.items())
    return [(str(number), inner) for number, inner in enumerate(value)] if isinstance(value, list) else []


def _pointer(place: Place) -> str:
    """Return a place as a JSON pointer, of long keys only the beginning."""
    return "".join("/" + key[:60].replace("~", "~0").replace("/", "~1") for key in place) or "its top"


def _value_problem(schema: dict[str, Any]) -> str | None:
    for place, value in _values(schema):
        if len(place) >= MAX_SCHEMA_LEVELS and isinstance(value, list | dict):
            return (
                f"the schema nests more than {MAX_SCHEMA_LEVELS} levels deep; move inner schemas to $defs, and refer "
                'to them with {"$ref": "#/$defs/NAME"}'
            )
        if isinstance(value, int | float) and not _is_in_range(value):
            return f"the number at {_pointer(place)} is beyond the range of 64-bit floating point; give a smaller one"
    return None


def _size_problem(schema: dict[str, Any]) -> str | None:
    size = len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
    if size <= MAX_SCHEMA_BYTES:
        return None
    return (
        f"the schema has {size} bytes as JSON, and at most {MAX_SCHEMA_BYTES} are accepted; leave out descriptions and "
        "examples, and write what is repeated once in $defs"
    )


@lru_cache(maxsize=512)
def _checked(text: str) -> str | None:
    """Return the problem of a schema of limited size and depth. Cached: specs are read more often than they change."""
    schema = json.loads(text)
    problem = _dialect_problem(schema) or _keyword_problem(schema)
    if problem is not None:
        return problem
    schemas = dict(_subschemas(schema))
    for place, subschema in schemas.items():
        problem = _subschema_problem(place, subschema)
        if problem is not None:
            return problem
    return _reference_problem(schemas)


def _dialect_problem(schema: dict[str, Any]) -> str | None:
    dialect = schema.get("$schema", DIALECT)
    if dialect in (DIALECT, DIALECT + "#"):
        return None
    return (
        f"$schema at its top is {str(dialect)[:100]!r}, and only draft 2020-12 is supported; write the schema in it, "
        f"and set $schema to {DIALECT} or leave it out"
    )


def _keyword_problem(schema: dict[str, Any]) -> str | None:
    """Return the first keyword with a value that draft 2020-12 does not allow, by its metaschema."""
    errors = Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(schema)
    error = best_match(islice(errors, 8))
    if error is None:
        return None
    place = tuple(map(str, error.absolute_path))
    return f"at {_pointer(place)}: {error.message[:200]}; correct it as draft 2020-12 of JSON Schema defines it"


def _subschemas(schema: Any) -> Iterator[tuple[Place, Any]]:
    """Yield the schema and each schema in it with its place; also those that are `true` or `false`."""
    stack: list[tuple[Place, Any]] = [((), schema)]
    while stack:
        place, found = stack.pop()
        yield place, found
        if isinstance(found, dict):
            stack += [((*place, name), found[name]) for name in (*_OF_PARTS, *_OF_SAME) if name in found]
            for name in (*_LISTS_OF_PARTS, *_LISTS_OF_SAME):
                stack += [((*place, name, key), inner) for key, inner in _items(found.get(name))]


def _subschema_problem(place: Place, schema: Any) -> str | None:
    """Return what is wrong with the regular expressions of a schema, or with its place in a larger one."""
    if not isinstance(schema, dict):
        return None
    for name in ("$id", "$schema"):
        if place and name in schema:
            return f"{name} at {_pointer((*place, name))} is within another schema; leave it out there"
    patterns = {(*place, "pattern"): schema["pattern"]} if "pattern" in schema else {}
    keys = list(schema.get("patternProperties", ()))
    patterns |= {(*place, "patternProperties", key): key for key in keys}
    if len(keys) > 1:
        patterns[(*place, "patternProperties")] = "|" + "|".join(keys)  # so are they tested, in any order
    for where, pattern in patterns.items():
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return (
                f"at {_pointer(where)}: {pattern[:100]!r} is no regular expression in Python's syntax: {error}; "
                "correct it, or leave it out"
            )
    return None


def _reference_problem(schemas: dict[Place, Any]) -> str | None:
    """Return the first reference that leads out of the schema, to nothing, or back to itself for the same value."""
    anchors = {
        schema[name]: place
        for place, schema in schemas.items()
        if isinstance(schema, dict)
        for name in _ANCHORS
        if name in schema
    }
    same: dict[Place, list[Place]] = {}
    for place, schema in schemas.items():
        if not isinstance(schema, dict):
            continue
        same[place] = [(*place, name) for name in _OF_SAME if name in schema]
        for name in _LISTS_OF_SAME:
            same[place] += [(*place, name, key) for key, _ in _items(schema.get(name))]
        for name in _REFERENCES:
            if name not in schema:
                continue
            reference = schema[name]
            where = f"{name} {reference[:100]!r} at {_pointer((*place, name))}"
            if not reference.startswith("#"):
                return (
                    f"{where} leads out of the schema, and nothing is fetched; copy what it refers to into $defs, and "
                    "refer to it with #/$defs/NAME"
                )
            target = _target(reference, anchors)
            if target not in schemas:
                return f"{where} leads to no schema; define it in $defs, and refer to it with #/$defs/NAME"
            same[place].append(target)
    try:
        TopologicalSorter(same).prepare()
    except CycleError as error:
        place = next(each for each in error.args[1] if any(name in schemas[each] for name in _REFERENCES))
        return (
            f"the reference at {_pointer(place)} leads back to itself for the same value, without end; refer to it "
            "from properties or items only"
        )
    return None


def _target(reference: str, anchors: dict[str, Place]) -> Place | None:
    fragment = unquote(reference[1:])
    if fragment and not fragment.startswith("/"):
        return anchors.get(fragment)
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in fragment.split("/")[1:])
