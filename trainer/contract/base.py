"""The two base classes of everything that crosses the border between trainer and platform."""

from pydantic import BaseModel, ConfigDict


class SpecModel(BaseModel):
    """Written by people: an unknown name is an error, so that a typing mistake is never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WireModel(BaseModel):
    """Written by programs of possibly different versions: unknown names are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
