"""Each field of the job spec is read somewhere: a field that no code reads would be accepted and ignored.

Which object an attribute is read from is inferred from the source, file by file: from annotations of parameters,
attributes and return values, from assignments, loops and comprehensions, and from the types of the spec's own fields.
So `optimizer.momentum` is not taken for read because `muon.momentum` is. Reads in a model's validators do not count,
reads in its other methods do.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from tests.architecture.test_layout import REPOSITORY, python_files
from tests.spec_models import MODELS, models_of

SOURCES = ("platform", "workers", "trainer")
LEARNT_FROM = (ast.arg, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.Assign)
VALIDATORS = {"model_validator", "field_validator"}
# Read by its name as a key of stored or dumped data: in which file.
READ_AS_KEY = {
    "BatchRamp.start_tokens_per_step": "trainer/contract/optimisation.py",
    "BatchRamp.steps": "trainer/contract/optimisation.py",
    "JobSpec.team": "platform/athanor/api/v1/submission.py",
    "Schedule.deferrable": "platform/athanor/budgets/schedule_windows.py",
    "Schedule.max_grams_per_kwh": "platform/athanor/budgets/schedule_windows.py",
    "Schedule.max_price_per_slot_hour": "platform/athanor/budgets/schedule_windows.py",
}
# Read in no way that can be seen, and why that is right.
NEVER_READ = {
    "JobSpec.version": "a literal: pydantic refuses every other version",
}
EXCEPTIONS = {*READ_AS_KEY, *NEVER_READ}
Names = frozenset[str]
NOTHING: Names = frozenset()


def named_in(annotation: ast.expr | None) -> Names:
    """Return the names of spec models in an annotation, including string annotations."""
    if annotation is None:
        return NOTHING
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        annotation = ast.parse(annotation.value, mode="eval").body
    words = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    words |= {node.attr for node in ast.walk(annotation) if isinstance(node, ast.Attribute)}
    return frozenset(words & set(MODELS))


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in python_files(*SOURCES)}


@cache
def declared() -> dict[str, Names]:
    """Return attributes and functions of all sources by name, with the spec models in their annotations."""
    found: dict[str, Names] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                        found[inner.target.id] = found.get(inner.target.id, NOTHING) | named_in(inner.annotation)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found[node.name] = found.get(node.name, NOTHING) | named_in(node.returns)
    return found


class File:
    """The reads of one file. `types`: spec models by the name of a variable, or of an attribute of self."""

    def __init__(self, tree: ast.Module, models: dict[str, type[BaseModel]]) -> None:
        self._models, self._tree = models, tree
        self.types: dict[str, Names] = {}
        sources, before = [node for node in ast.walk(tree) if isinstance(node, LEARNT_FROM)], None
        while before != self.types:  # an assignment may take its type from one further below
            before = dict(self.types)
            for node in sources:
                self._learn(node)

    def reads(self) -> Iterator[str]:
        yield from self._reads(self._tree, NOTHING)

    def _reads(self, node: ast.AST, inside: Names) -> Iterator[str]:
        """`inside`: the spec model whose method this is."""
        if isinstance(node, ast.FunctionDef) and inside and _is_validator(node):
            return
        if isinstance(node, ast.ClassDef):
            inside = frozenset({node.name} & set(self._models))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            is_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            for model in inside if inside and is_self else self.type_of(node.value):
                for name in [model, *(each.__name__ for each in self._models[model].__mro__[1:])]:
                    if name in self._models and node.attr in self._models[name].model_fields:
                        yield f"{name}.{node.attr}"
        for inner in ast.iter_child_nodes(node):
            yield from self._reads(inner, inside)

    def type_of(self, node: ast.expr) -> Names:
        match node:
            case ast.Name(id=name):
                return self.types.get(name, NOTHING)
            case ast.Attribute(value=owner, attr=name):
                if isinstance(owner, ast.Name) and owner.id == "self" and name in self.types:
                    return self.types[name]
                fields = [self._models[model].model_fields.get(name) for model in self.type_of(owner)]
                if any(fields):
                    inner = (models_of(field.annotation) for field in fields if field is not None)
                    return frozenset(each.__name__ for group in inner for each in group)
                return declared().get(name, NOTHING)
            case ast.Call(func=ast.Name(id=name)) if name in self._models:
                return frozenset({name})
            case ast.Call(func=ast.Attribute(value=owner, attr="model_copy")):
                return self.type_of(owner)
            case ast.Call(func=ast.Name(id="next" | "sorted" | "list" | "enumerate" | "zip"), args=arguments):
                return self._all(arguments)
            case ast.Call(func=ast.Name(id=name)):
                return declared().get(name, NOTHING)
            case ast.Call(func=function):
                return self.type_of(function)
            case ast.IfExp(body=first, orelse=second):
                return self._all([first, second])
            case ast.BoolOp(values=values) | ast.Tuple(elts=values) | ast.List(elts=values):
                return self._all(values)
            case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.NamedExpr(value=inner):
                return self.type_of(inner)
            case ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner):
                return self.type_of(inner)
        return NOTHING

    def _all(self, nodes: Iterable[ast.expr]) -> Names:
        return NOTHING.union(*(self.type_of(each) for each in nodes))

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.arg):
            self._add(node.arg, named_in(node.annotation))
        elif isinstance(node, ast.AnnAssign):
            self._bind(node.target, named_in(node.annotation))
        elif isinstance(node, ast.NamedExpr):
            self._bind(node.target, self.type_of(node.value))
        elif isinstance(node, ast.For | ast.comprehension):
            self._bind(node.target, self.type_of(node.iter))
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for each, value in zip(target.elts, node.value.elts, strict=False):
                        self._bind(each, self.type_of(value))
                else:
                    self._bind(target, self.type_of(node.value))

    def _bind(self, target: ast.expr, models: Names) -> None:
        if isinstance(target, ast.Name):
            self._add(target.id, models)
        elif isinstance(target, ast.Attribute):
            self._add(target.attr, models)
        elif isinstance(target, ast.Tuple):
            for each in target.elts:
                self._bind(each, models)

    def _add(self, name: str, models: Names) -> None:
        if models:
            self.types[name] = self.types.get(name, NOTHING) | models


def _is_validator(function: ast.FunctionDef) -> bool:
    names = {node.id for each in function.decorator_list for node in ast.walk(each) if isinstance(node, ast.Name)}
    return bool(names & VALIDATORS) or (
        function.returns is not None and "FieldConflict" in ast.unparse(function.returns)
    )


def keys_of_stored_specs() -> set[str]:
    """Field names by which a stored spec is read: `resolved_spec["checkpoint"]["keep_last"]`, `.get("...")`, and
    look-ups of the database like `job__resolved_spec__time_limit_seconds`."""
    found = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "resolved_spec__" in node.value:
                found.update(node.value.partition("resolved_spec__")[2].split("__"))
            if isinstance(node, ast.Subscript | ast.Call) and "resolved_spec" in ast.unparse(node):
                key = node.slice if isinstance(node, ast.Subscript) else next(iter(node.args), None)
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.add(key.value)
    return found


def unread(models: dict[str, type[BaseModel]]) -> set[str]:
    """Return the fields that no source reads. A field that a base model declares counts as the base's."""
    read = {name for tree in trees().values() for name in File(tree, models).reads()}
    by_key = keys_of_stored_specs()
    return {
        f"{model.__name__}.{name}"
        for model in models.values()
        for name in model.model_fields
        if f"{model.__name__}.{name}" not in read
        and name not in by_key
        and not any(f"{base.__name__}.{name}" in read for base in model.__mro__[1:])
    }


def test_every_field_of_the_job_spec_is_read() -> None:
    ignored = sorted(unread(MODELS) - EXCEPTIONS)
    assert ignored == [], "the spec accepts these fields, and no code reads them"


def test_the_exceptions_are_needed_and_right() -> None:
    assert unread(MODELS) >= EXCEPTIONS
    for name, path in READ_AS_KEY.items():
        constants = {node.value for node in ast.walk(trees()[REPOSITORY / path]) if isinstance(node, ast.Constant)}
        assert name.partition(".")[2] in constants, f"{path} does not read {name}"


def test_a_planted_field_is_found() -> None:
    """`momentum` and `weight` are names that are read from other models."""
    planted = {"TrainingSpec": "label_smoothing", "OptimizerSpec": "momentum", "Resources": "weight"}
    models = dict(MODELS)
    for model, field in planted.items():
        more: dict[str, Any] = {field: (float, 0.0)}
        models[model] = create_model(model, __base__=MODELS[model], **more)
    assert unread(models) - EXCEPTIONS == {f"{model}.{field}" for model, field in planted.items()}
