"""The pydantic models of the job spec by name, for the tests that hold something of each field."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from athanor.specs.v1 import JobSpec


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a type mentions, at any depth."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_of(part)


def reachable(model: type[BaseModel], found: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """Add `model` and all models of its fields to `found`, and return it."""
    if model.__name__ not in found:
        found[model.__name__] = model
        for field in model.model_fields.values():
            for inner in models_of(field.annotation):
                reachable(inner, found)
    return found


MODELS = reachable(JobSpec, {})
