"""The job spec explains itself: each field has a description, a unit where its value has one, and an example.

The rule for examples: a default that is neither null nor empty is one. Booleans, enumerations and nested objects need
none. Every other field lists at least one under `examples`.
"""

import json
import re
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from athanor.api.document import PATH as OPENAPI
from tests.spec_models import MODELS
from trainer.contract.base import SpecModel

# By the field's name: what its description must mention.
UNITS = {
    r"_seconds$": r"\bseconds\b",
    r"bytes": r"\bbytes\b",
    r"^(every_)?steps$|_steps?$": r"\bsteps?\b",
    r"tokens": r"\btokens\b",
    r"sequences": r"\bsequences\b",
    r"^sequence_length$|^original_length$": r"\btokens\b",
    r"fraction": r"\bfraction\b",
    r"_per_slot_hour$": r"\bcurrency\b",
    r"grams": r"\bgrams\b",
    r"_factor$": r"\bfactor\b",
}
WORD_COUNT = 5


def needs_example(field: FieldInfo) -> bool:
    if field.default not in (None, PydanticUndefined, "") and field.default != [] and field.default != {}:
        return False
    return not is_plain(field.annotation)


def is_plain(annotation: Any) -> bool:
    """Return whether an example adds nothing to the schema: booleans, enumerations and single objects."""
    if get_origin(annotation) is Literal or annotation in (bool, NoneType):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    parts = get_args(annotation)
    return bool(parts) and get_origin(annotation) not in (list, dict) and all(map(is_plain, parts))


# Kinds of clusters, accelerators, keys of chat files, ending reasons, limits of quotas, functions.
OTHER_WORDS = {
    "local", "cpu", "messages", "role", "content", "dependency_failed", "waited_too_long", "deadline_missed",
    "bad_spec", "data_error", "max_run_seconds", "torch", "chosen", "rejected", "prompt", "question", "choices",
    "answer", "bits_per_byte", "accuracy", "accuracy_normalised", "completion", "label",
}  # fmt: skip


def literals(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    for part in get_args(annotation):
        yield from literals(part)


FIELDS = [
    pytest.param(model, name, field, id=f"{model.__name__}.{name}")
    for model in MODELS.values()
    for name, field in model.model_fields.items()
]


def test_the_models_are_found() -> None:
    assert {"JobSpec", "Resources", "TrainingSpec", "MoEShape", "MlflowSpec", "MixturePart"} <= set(MODELS)
    assert all(issubclass(model, SpecModel) for model in MODELS.values())
    assert len(FIELDS) > 120


@pytest.mark.parametrize(("model", "name", "field"), FIELDS)
def test_a_field_has_a_description_a_unit_and_an_example(model: type[BaseModel], name: str, field: FieldInfo) -> None:
    description = field.description or ""
    assert len(description.split()) >= WORD_COUNT, "write a docstring below the field"
    assert description.endswith("."), "a description is made of sentences"
    for pattern, unit in UNITS.items():
        if re.search(pattern, name):
            assert re.search(unit, description, re.IGNORECASE), f"the unit is missing: {unit}"
    if needs_example(field):
        assert field.examples, "give it Field(examples=[...])"


@pytest.mark.parametrize(("model", "name", "field"), FIELDS)
def test_an_example_is_valid(model: type[BaseModel], name: str, field: FieldInfo) -> None:
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    for example in field.examples or []:
        TypeAdapter(kind).validate_python(example)


@pytest.mark.parametrize("model", [pytest.param(model, id=name) for name, model in MODELS.items()])
def test_what_a_description_names_is_there(model: type[BaseModel]) -> None:
    """A name in backquotes is a field, a value or a word of the list below."""
    known = {name for each in MODELS.values() for name in each.model_fields}
    known |= {str(value) for each in MODELS.values() for field in each.model_fields.values()
              for value in literals(field.annotation)}  # fmt: skip
    for name, field in model.model_fields.items():
        for quoted in re.findall(r"`([a-z_]+(?:\.[a-z_]+)*)`", field.description or ""):
            missing = [part for part in quoted.split(".") if part not in known | OTHER_WORDS]
            assert not missing, f"{model.__name__}.{name} names {quoted!r}, which is neither a field nor a value"


def test_the_api_document_has_the_descriptions() -> None:
    schemas = json.loads(OPENAPI.read_text())["components"]["schemas"]
    for model in MODELS.values():
        component = schemas.get(model.__name__) or schemas[f"{model.__name__}Request"]
        for name, field in model.model_fields.items():
            described = component["properties"][name]
            place = f"{model.__name__}.{name}"
            assert described.get("description") == field.description, f"{place}: run `make gen`"
            assert described.get("examples") == field.examples, f"{place}: run `make gen`"
