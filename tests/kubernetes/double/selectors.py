"""Label and field selectors, as they are written in a query."""

import re
from collections.abc import Callable
from typing import Any

from tests.kubernetes.double.errors import ApiError

Object = dict[str, Any]
SETS = re.compile(r"^(?P<key>[^\s!=,()]+)\s+(?P<operator>in|notin)\s+\((?P<values>[^)]*)\)$")


def split(selector: str) -> list[str]:
    """At the commas that are outside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", selector) if part.strip()]


def labels(selector: str) -> Callable[[Object], bool]:
    return lambda item: matches_labels(selector, item["metadata"].get("labels") or {})


def matches_labels(selector: str, found: dict[str, str]) -> bool:
    for part in split(selector):
        if sets := SETS.match(part):
            is_in = found.get(sets["key"]) in [value.strip() for value in sets["values"].split(",")]
            if is_in != (sets["operator"] == "in"):
                return False
        elif "!=" in part:
            key, value = part.split("!=")
            if found.get(key.strip()) == value.strip():
                return False
        elif "=" in part:
            key, value = re.split(r"==?", part, maxsplit=1)
            if found.get(key.strip()) != value.strip():
                return False
        elif part.startswith("!"):
            if part[1:] in found:
                return False
        elif part not in found:
            return False
    return True


def matches_label_selector(selector: Object, found: dict[str, str]) -> bool:
    """The structured form: matchLabels and matchExpressions."""
    if any(found.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(matches_expression(one, found) for one in selector.get("matchExpressions") or [])


def matches_expression(expression: Object, found: dict[str, str]) -> bool:
    value, values = found.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ApiError(422, f"unknown operator {expression['operator']}")


# What the real server can select each kind by, besides metadata.name and metadata.namespace.
FIELDS = {
    "pods": ("spec.nodeName", "spec.restartPolicy", "status.phase", "status.podIP"),
    "events": (
        "involvedObject.kind", "involvedObject.name", "involvedObject.namespace", "involvedObject.uid",
        "reason", "type",
    ),
    "jobs": ("status.successful",),
    "nodes": ("spec.unschedulable",),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
}  # fmt: skip


def fields(plural: str, selector: str) -> Callable[[Object], bool]:
    wanted: list[tuple[list[str], str, bool]] = []
    for part in split(selector):
        key, value = re.split(r"!=|==|=", part, maxsplit=1)
        if key not in ("metadata.name", "metadata.namespace", *FIELDS.get(plural, ())):
            raise ApiError(400, f'field label not supported: {key}: "{plural}"')
        wanted.append((key.split("."), value, "!=" not in part))
    return lambda item: all((read(item, path) == value) == is_equal for path, value, is_equal in wanted)


def read(item: Object, path: list[str]) -> str:
    found: Any = item
    for name in path:
        found = (found or {}).get(name)
    return str(found).lower() if isinstance(found, bool) else str(found or "")
