"""The base classes and commonest numbers of everything that crosses the border between trainer and platform."""

from math import isfinite
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

PositiveInt = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

# What an agent sends ends up in integer columns of 32 bits, or in JSON whose readers know integers of 64.
MAX_INT32 = 2**31 - 1
Count32 = Annotated[int, Field(ge=0, le=MAX_INT32)]
Step32 = Annotated[int, Field(ge=-1, le=MAX_INT32, description="-1 before the first step")]
Int32 = Annotated[int, Field(ge=-(2**31), le=MAX_INT32)]
Count64 = Annotated[int, Field(ge=0, le=2**63 - 1)]


def _storable(value: Any) -> Any:
    """JSON as a database can store it: NaN and infinities, which JSON does not have, become null."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _storable(item) for name, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list) else value


def _finite(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isfinite(value)}


FiniteMetrics = Annotated[dict[str, float], AfterValidator(_finite)]
"""By name; values that are not finite are left out."""
JsonObject = Annotated[dict[str, Any], AfterValidator(_storable)]


def _types_in(annotation: Any) -> set[Any]:
    parts = get_args(annotation)
    return {annotation}.union(*map(_types_in, parts)) if parts else {annotation}


class SpecModel(BaseModel):
    """A document that a person writes: an unknown field is an error, so that a typing mistake is never ignored.

    `true` and `false` are not accepted as numbers, although Python counts them as 1 and 0. The string below a field
    is its description in the OpenAPI document and in the generated reference.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_boolean_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool):
            types = _types_in(cls.model_fields[str(info.field_name)].annotation)
            if types & {int, float} and not types & {bool, Any}:
                raise PydanticCustomError("number_expected", "a number is expected, not true or false")
        return value


class WireModel(BaseModel):
    """Written by programs of possibly different versions: unknown names are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
