"""Every field of a serializer reads an attribute that the class which it represents has.

A serializer names that class as its type argument (`Serializer[Team]`) or in `Meta.model`. Each part of a field's
source is then looked up on it: a field or relation of a model, else an annotated attribute or property. Below a
dictionary (`resolved_spec.priority`) and below an attribute without an annotation nothing is known, and the rest of the
path is accepted. Serializers of `Any` represent dictionaries that a view builds: they may name no source.
"""

import ast
import importlib
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import models
from rest_framework import serializers

from athanor.accounts.models import Team
from athanor.api.bodies import RequestSerializer
from athanor.api.v1 import serializers as package
from athanor.jobs.models import Job
from athanor.reconcilers import backlog
from athanor.webhooks.models import Webhook

AnySerializer = serializers.Serializer[Any]
UNKNOWN = object  # the type of a value of which nothing is known
# Fields that the class has not: what adds them to the response.
ADDED = {
    "MadeInvitationSerializer.token": "a view, beside the invitation",
    "MadeInvitationSerializer.url": "a view, beside the invitation",
    "MadeWebhookSerializer.secret": "a view, beside the webhook",
    "NewTokenSerializer.token": "a view, beside the token",
    "TeamSerializer.max_running_jobs": "to_representation, from the team's leaf of the quota tree",
    "TeamSerializer.max_slots": "to_representation, from the team's leaf of the quota tree",
}


def serializer_classes() -> list[type[AnySerializer]]:
    """Return the serializer classes of the API, by name."""
    found: dict[str, type[AnySerializer]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for name, member in vars(importlib.import_module(module.name)).items():
            if (
                inspect.isclass(member)
                and issubclass(member, serializers.Serializer)
                and member.__module__ == module.name
            ):
                found[name] = member
    return [found[name] for name in sorted(found)]


def represented(serializer: type[AnySerializer]) -> list[type]:
    """Return the classes that a serializer represents: several for a union, none for `Any`."""
    model = getattr(getattr(serializer, "Meta", None), "model", None)
    if model is not None:
        return [model]
    for base in serializer.__mro__:
        if classes := _type_argument(base):
            return classes
    return []


def _type_argument(serializer: type) -> list[type]:
    """Return the classes that the source names in `Serializer[...]`, which Django REST framework drops at run time."""
    if not serializer.__module__.startswith(package.__name__):
        return []
    [definition] = ast.parse(inspect.getsource(serializer)).body
    for base in cast(ast.ClassDef, definition).bases:
        if isinstance(base, ast.Subscript):
            named = eval(ast.unparse(base.slice), vars(sys.modules[serializer.__module__]))
            options = getattr(named, "__constraints__", None) or typing.get_args(named) or (named,)
            return [each for each in options if inspect.isclass(each) and each is not Any]
    return []


def type_of(owner: type, name: str) -> type | None:
    """Return the type of an attribute, UNKNOWN if nothing says it, None if `owner` has no such attribute."""
    if owner is UNKNOWN or issubclass(owner, dict):
        return UNKNOWN
    if issubclass(owner, models.Model):
        try:
            field = owner._meta.get_field(name)
        except FieldDoesNotExist:
            if any(name == getattr(each, "attname", None) for each in owner._meta.get_fields()):
                return UNKNOWN
        else:
            if field.is_relation and (field.one_to_many or field.many_to_many):
                return models.Manager
            return cast(type, field.related_model) if field.is_relation else UNKNOWN
    member = inspect.getattr_static(owner, name, None)
    if isinstance(member, property):
        return _class_of(typing.get_type_hints(member.fget).get("return"))
    if isinstance(member, cached_property):
        return _class_of(typing.get_type_hints(member.func).get("return"))
    annotated = typing.get_type_hints(owner)
    if name in annotated:
        return _class_of(annotated[name])
    return None if member is None and not hasattr(owner, name) else UNKNOWN


def _class_of(annotation: Any) -> type:
    """Return the class that an annotation names, without None; UNKNOWN if it names none or several."""
    options = [each for each in typing.get_args(annotation) if each is not types.NoneType]
    if isinstance(annotation, types.UnionType) and len(options) == 1:
        return _class_of(options[0])
    origin = typing.get_origin(annotation) or annotation
    return origin if inspect.isclass(origin) else UNKNOWN


def missing_part(owner: type, source: str) -> str | None:
    """Return the first part of `source` that leads nowhere from `owner`, None if all parts exist."""
    for part in source.split("."):
        found = type_of(owner, part)
        if found is None:
            return f"{owner.__name__} has no {part}"
        owner = found
    return None


def problems(serializer: type[AnySerializer]) -> Iterator[str]:
    """Yield what is wrong with the sources of a serializer's fields."""
    classes = represented(serializer)
    for name, field in serializer().fields.items():
        place = f"{serializer.__name__}.{name}"
        if isinstance(field, serializers.SerializerMethodField):
            if not hasattr(serializer, cast(str, field.method_name)):
                yield f"{place}: no method {field.method_name}"
        elif not classes and field.source != name:
            yield f"{place}: name the class of {field.source} as the type argument of Serializer"
        elif place not in ADDED:
            yield from (f"{place}: {each}" for owner in classes if (each := missing_part(owner, str(field.source))))


RESPONSES = [
    each
    for each in serializer_classes()
    if not issubclass(each, RequestSerializer) or issubclass(each, serializers.ModelSerializer)
]


@pytest.mark.parametrize("serializer", RESPONSES, ids=lambda each: each.__name__)
def test_each_field_reads_an_attribute_that_exists(serializer: type[AnySerializer]) -> None:
    assert list(problems(serializer)) == []


def test_additions_are_still_fields_that_their_class_has_not() -> None:
    found = {f"{each.__name__}.{name}": (each, name) for each in RESPONSES for name in each().fields}
    assert set(ADDED) <= set(found)
    assert [
        place for place in ADDED if all(type_of(owner, found[place][1]) for owner in represented(found[place][0]))
    ] == []


@pytest.mark.parametrize(
    ("owner", "source"),
    [
        (backlog.State, "sweeper.name"),
        (backlog.State, "reconciler.title"),
        (Team, "owner"),
        (Team, "quota_node.parent.nmae"),
        (Job, "pool.cluster.nmae"),
        (Job, "forked_from_name"),
        (Webhook, "secrets.each"),
    ],
)
def test_a_planted_source_that_leads_nowhere_is_found(owner: type, source: str) -> None:
    assert missing_part(owner, source) is not None


@pytest.mark.parametrize(
    ("owner", "source"),
    [
        (backlog.State, "reconciler.task"),
        (Job, "pool.cluster.name"),
        (Job, "forked_from_id"),
        (Job, "resolved_spec.priority"),
        (Webhook, "secrets.all"),
    ],
)
def test_a_source_that_exists_is_accepted(owner: type, source: str) -> None:
    assert missing_part(owner, source) is None
