"""JSON and YAML that strangers wrote: plain data of bounded depth and size, or Invalid that says where and why not."""

import json
import math
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.resolver import BaseResolver

from athanor.core.errors import Invalid

MAX_LEVELS = 64
MAX_VALUES = 100_000  # of a YAML document with its aliases written out
_TAG = "tag:yaml.org,2002:"
_JSON_TAGS = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge"))


def load_json(text: bytes) -> Any:
    """Return the data of a JSON document. Raises ValueError for what is not JSON, Invalid where it nests too deeply."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep("JSON") from error
    check_levels(data)
    return data


def load_yaml(text: str, what: str = "document") -> Any:
    """Return the data of a YAML document as JSON has it: texts, numbers, booleans, null, lists, mappings by text.

    A date stays the text that was written. Raises Invalid with line and column for what is not YAML or not such data,
    and where it nests too deeply or its aliases stand for too many values.
    """
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _check_nodes(node, what)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except RecursionError as error:
        raise _too_deep(what) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
        raise Invalid(
            "invalid_yaml", f"the {what} is not YAML{where}: {problem}", remedy="correct the syntax"
        ) from error


def check_levels(data: Any) -> None:
    """Raise Invalid where lists and mappings nest more than MAX_LEVELS deep."""
    level = [data]
    for _ in range(MAX_LEVELS):
        level = [
            inner
            for value in level
            if isinstance(value, list | dict)
            for inner in (value.values() if isinstance(value, dict) else value)
            if isinstance(inner, list | dict)
        ]
        if not level:
            return
    raise _too_deep("JSON")


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without dates, sets and binary data, which JSON has no place for."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_TAG}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        if node.tag == f"{_TAG}timestamp":
            node.tag = BaseResolver.DEFAULT_SCALAR_TAG
        if node.tag not in _JSON_TAGS:
            raise ConstructorError(None, None, f"{node.tag.removeprefix(_TAG)!r} is no kind of JSON", node.start_mark)
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, OverflowError) as error:
            shown = node.value[:40] if isinstance(node, ScalarNode) else ""
            kind = node.tag.removeprefix(_TAG)
            raise ConstructorError(None, None, f"{shown!r} is no {kind}", node.start_mark) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise ConstructorError(None, None, f"{value} is no number of JSON", node.start_mark)
        return value

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        wrong = next((key for key in mapping if not isinstance(key, str)), None)
        if wrong is not None or None in mapping:
            raise ConstructorError(None, None, f"the key {wrong!r} is no text: quote it", node.start_mark)
        return dict(mapping)


def _check_nodes(root: Node, what: str) -> None:
    """Raise Invalid where the graph is too deep, refers to itself, or has too many values once aliases are replaced."""
    sizes: dict[int, int] = {}

    def size_of(node: Node, path: frozenset[int]) -> int:
        if id(node) in path:
            raise Invalid("invalid_yaml", f"the {what} has an alias within what it stands for", remedy="write it out")
        if id(node) in sizes:
            return sizes[id(node)]
        inner: list[Node] = []
        if isinstance(node, SequenceNode):
            inner = node.value
        elif isinstance(node, MappingNode):
            inner = [part for pair in node.value for part in pair]
        if inner and len(path) >= MAX_LEVELS:
            raise _too_deep(what)
        below = path | {id(node)} if inner else path
        total = 1 + sum(size_of(part, below) for part in inner)
        if total > MAX_VALUES:
            detail = f"the {what} holds more than {MAX_VALUES} values, aliases written out"
            raise Invalid("too_many_values", detail, remedy="use fewer aliases, or several smaller documents")
        sizes[id(node)] = total
        return total

    size_of(root, frozenset())


def _too_deep(what: str) -> Invalid:
    return Invalid("too_deep", f"the {what} nests more than {MAX_LEVELS} levels deep", remedy="flatten it")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
