"""Durations and sizes as people write them: `2h`, `1d 12h`, `40 GiB`, `500 MB`.

`DURATION` and `SIZE` mark the numbers of specs and configurations that may be written so: `Annotated[int, Field(ge=10),
DURATION]`. The value of such a field is the number.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

DURATIONS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
SIZES = {
    "PiB": 2**50, "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10,
    "PB": 10**15, "TB": 10**12, "GB": 10**9, "MB": 10**6, "kB": 10**3, "B": 1,
}  # fmt: skip
_SIZES_BY_NAME = {name.lower(): size for name, size in SIZES.items()}
_BINARY = [(name, size) for name, size in SIZES.items() if name.endswith("iB")]
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,18})?"
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([dhms])", re.IGNORECASE)
_SECONDS = re.compile(r"[0-9]{1,18}")
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.IGNORECASE)
_WRITE_DURATION = "write it like 90m, 2h or 1d 12h, or in seconds"
_WRITE_SIZE = "write it like 40 GiB or 500 MB, or in bytes"


def parse_duration(text: str) -> int:
    """Return the seconds of a text such as `90m`, `1d 12h` or `3600`. Raises ValueError with an example."""
    return round(_exact_seconds(text))


def _exact_seconds(text: str) -> Fraction:
    rest = text.strip()
    if _SECONDS.fullmatch(rest):
        return Fraction(rest)
    total, place = Fraction(0), 0
    while found := _DURATION_PART.match(rest, place):
        total += Fraction(found[1]) * DURATIONS[found[2].lower()]
        place = found.end()
    if place == 0 or rest[place:].strip():
        raise ValueError(f"{text!r} is not a duration; {_WRITE_DURATION}")
    return total


def parse_size(text: str) -> int:
    """Return the bytes of a text such as `40 GiB`, `500 MB` or `1024`. Raises ValueError with an example."""
    found = _SIZE.fullmatch(text.strip())
    unit = _SIZES_BY_NAME.get((found[2] or "B").lower()) if found else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is not a size; {_WRITE_SIZE}")
    return round(Fraction(found[1]) * unit)


def duration_text(seconds: int) -> str:
    """Return a duration exactly, in the units that it has: `1d 12h`."""
    parts = []
    for unit, size in DURATIONS.items():
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def size_text(count: int) -> str:
    """Return a size exactly, in the largest unit in which it has at most two decimals: `1.5 GiB`."""
    for name, size in _BINARY:
        if count >= size and count * 100 % size == 0:
            whole, hundredths = divmod(count * 100 // size, 100)
            return f"{whole}{f'.{hundredths:02d}'.rstrip('0') if hundredths else ''} {name}"
    return f"{count} B"


def _seconds(text: str) -> int | float:
    """Return the seconds, with their fraction: a field of whole seconds refuses one. Above 2^53 seconds, where
    floating-point numbers have none, without it: a limit of the field refuses those."""
    exact = _exact_seconds(text)
    return int(exact) if exact.denominator == 1 or exact > 2**53 else float(exact)


@dataclass(frozen=True)
class Unit:
    """Mark a number that may also be written as a text with units. Put it behind the number's limits."""

    name: str
    parse: Callable[[str], int | float]
    text: Callable[[int], str]
    remedy: str
    json_schema: dict[str, Any]

    def __hash__(self) -> int:
        """Return a hash by which pydantic compares annotations."""
        return hash(self.name)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the number, which reads texts first."""
        return core_schema.no_info_wrap_validator_function(self._read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema: the number or a text."""
        return {"anyOf": [handler(schema), dict(self.json_schema)]}

    def _read(self, value: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, str):
            number: Any = value
        else:
            try:
                number = self.parse(value)
            except ValueError as error:
                kind = {"name": self.name, "remedy": self.remedy}
                raise PydanticCustomError("unit_expected", "must be a {name}; {remedy}", kind) from error
        try:
            return handler(number)
        except ValidationError as error:
            raise self._with_units(error) from error

    def _with_units(self, error: ValidationError) -> Exception:
        """Return the error of a number, with the limit that it names also in units and the value as it was written."""
        (found,) = error.errors(include_url=False)
        limit = next((value for name, value in found.get("ctx", {}).items() if name in ("ge", "gt", "le", "lt")), None)
        detail = f" ({self.text(int(limit))})" if limit and limit == int(limit) else ""
        return PydanticCustomError(found["type"], "{message}", {"message": f"{found['msg']}{detail}"})


DURATION = Unit(
    "duration", _seconds, duration_text, _WRITE_DURATION,
    {
        "type": "string", "x-unit": "duration", "examples": ["2h"],
        "pattern": r"^\s*([0-9]{1,18}\s*|([0-9]{1,18}(\.[0-9]{1,18})?\s*[dhmsDHMS]\s*)+)$",
        "description": "A duration with units: `90m`, `2h`, `1d 12h`.",
    },
)  # fmt: skip
SIZE = Unit(
    "size", parse_size, size_text, _WRITE_SIZE,
    {
        "type": "string", "x-unit": "size", "examples": ["40 GiB"],
        "pattern": r"^\s*[0-9]{1,18}(\.[0-9]{1,18})?\s*([kKmMgGtTpP]?[bB]|[kKmMgGtTpP][iI][bB])?\s*$",
        "description": "A size with its unit: `40 GiB`, `500 MB`.",
    },
)  # fmt: skip
