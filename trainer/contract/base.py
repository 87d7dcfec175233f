"""Base models and bounded numbers of the contract between trainer and platform."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

# Values sent by an agent are stored in 32-bit integer columns, or in JSON with 64-bit integers.
MAX_INT32 = 2**31 - 1
Count32 = Annotated[int, Field(ge=0, le=MAX_INT32)]
Step32 = Annotated[int, Field(ge=-1, le=MAX_INT32, description="-1 before the first step")]
Int32 = Annotated[int, Field(ge=-(2**31), le=MAX_INT32)]
Count64 = Annotated[int, Field(ge=0, le=2**63 - 1)]


def _storable(value: Any) -> Any:
    """Replace NaN and infinities, which JSON does not have, by null."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _storable(item) for name, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list) else value


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isfinite(value)}


FiniteMetrics = Annotated[dict[str, float], AfterValidator(_finite)]
"""Metrics by name, without values that are not finite."""
JsonObject = Annotated[dict[str, Any], AfterValidator(_storable)]


def _types_in(annotation: Any) -> set[Any]:
    parts = get_args(annotation)
    return {annotation}.union(*map(_types_in, parts)) if parts else {annotation}


class SpecModel(BaseModel):
    """Strict model, for documents of users and for the API: unknown fields are errors, so no typing mistake is ignored.

    `true` and `false` are not accepted as numbers, also in lists, although Python counts them as 1 and 0. The string
    below a field is its description in the OpenAPI document and in the generated reference.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_boolean_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) or (isinstance(value, list) and any(isinstance(item, bool) for item in value)):
            types = _types_in(cls.model_fields[str(info.field_name)].annotation)
            if types & {int, float} and not types & {bool, Any}:
                raise PydanticCustomError("number_expected", "a number is expected, not true or false")
        return value


class WireModel(BaseModel):
    """Tolerant model, for messages between programs of different versions: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


@dataclass(frozen=True)
class Pattern:
    """Constraint of a text: it must match `regex` completely. Errors say it as `description`."""

    regex: str
    description: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the text with this check after it."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema with the pattern."""
        return {**handler(schema), "pattern": self.regex}

    def _check(self, value: str) -> str:
        if re.fullmatch(self.regex, value) is None:
            raise PydanticCustomError(
                "string_pattern_mismatch", "must be {description}", {"description": self.description}
            )
        return value


@dataclass(frozen=True)
class FieldConflict:
    """A mistake between fields of a model which are valid one by one.

    `at`: the field to change, with dots below the model; empty for the model itself. `others`: the fields that it
    conflicts with.
    """

    at: str
    message: str
    others: tuple[str, ...] = ()


class FieldConflictError(ValueError):
    """All conflicts between the fields of a model."""

    def __init__(self, conflicts: list[FieldConflict]) -> None:
        super().__init__("; ".join(each.message for each in conflicts))
        self.conflicts = conflicts


class CheckedModel(SpecModel):
    """A model with checks between its fields. All of them run, so that all mistakes are reported together."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        """Yield every conflict between the fields."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _without_conflicts(self) -> Self:
        found = list(self._conflicts())
        if found:
            raise FieldConflictError(found)
        return self
