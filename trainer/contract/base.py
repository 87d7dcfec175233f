"""The base classes and commonest numbers of everything that crosses the border between trainer and platform."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveInt = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class SpecModel(BaseModel):
    """Written by people: an unknown name is an error, so that a typing mistake is never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WireModel(BaseModel):
    """Written by programs of possibly different versions: unknown names are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
