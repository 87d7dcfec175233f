"""The published OpenAPI schemas of Kubernetes, where a copy is at hand: strict, so that an unknown field is refused.

The folder is $ATHANOR_TEST_KUBERNETES_OPENAPI, or `shared/data/kubernetes-openapi-1.36` beside the repository.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from deploy.local.environment import REPOSITORY
from tests.kubernetes.double.store import Kind

VARIABLE = "ATHANOR_TEST_KUBERNETES_OPENAPI"
BESIDE = Path(REPOSITORY).parent / "shared" / "data" / "kubernetes-openapi-1.36"


class Schemas:
    def __init__(self, folder: Path) -> None:
        self._schemas: dict[str, Any] = {}
        self._by_kind: dict[tuple[str, str, str], str] = {}
        for file in sorted(folder.glob("*.json")):
            for name, schema in json.loads(file.read_text())["components"]["schemas"].items():
                self._schemas[name] = schema
                for one in schema.get("x-kubernetes-group-version-kind", []):
                    self._by_kind.setdefault((one["group"], one["version"], one["kind"]), name)

    @classmethod
    @cache
    def found(cls) -> "Schemas | None":
        folder = Path(os.environ.get(VARIABLE) or BESIDE)
        return cls(folder) if folder.is_dir() else None

    def problems(self, kind: Kind, item: Any) -> list[str]:
        """What is wrong with an object, field by field. A kind that has no schema has no problems."""
        name = self._by_kind.get((kind.group, kind.version, kind.kind))
        return list(self._walk(self._schemas[name], item, "")) if name else []

    def _walk(self, schema: dict[str, Any], value: Any, path: str) -> Any:
        if "$ref" in schema:
            yield from self._walk(self._schemas[schema["$ref"].rpartition("/")[2]], value, path)
            return
        for part in schema.get("allOf", []):
            yield from self._walk(part, value, path)
        if choices := schema.get("oneOf"):
            if all(any(True for _ in self._walk(choice, value, path)) for choice in choices):
                yield f"{path}: {value!r} is of no allowed type"
            return
        expected = schema.get("type")
        if expected is not None and not _is(expected, value):
            yield f"{path}: {value!r} is not of type {expected}"
            return
        if "enum" in schema and value not in schema["enum"]:
            yield f'{path}: unsupported value "{value}"'
        if expected == "array":
            for number, each in enumerate(value):
                yield from self._walk(schema["items"], each, f"{path}[{number}]")
        elif expected == "object":
            yield from self._object(schema, value, path)

    def _object(self, schema: dict[str, Any], value: dict[str, Any], path: str) -> Any:
        known, other = schema.get("properties"), schema.get("additionalProperties")
        for name in schema.get("required", []):
            if name not in value:
                yield f"{path}.{name}: required value"
        if known is None and other is None:
            return  # anything goes: FieldsV1, raw extensions
        for name, each in value.items():
            if known and name in known:
                yield from self._walk(known[name], each, f"{path}.{name}")
            elif isinstance(other, dict):
                yield from self._walk(other, each, f"{path}.{name}")
            else:
                yield f'unknown field "{path}.{name}"'


def _is(expected: str, value: Any) -> bool:
    match expected:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
    return isinstance(value, dict)
