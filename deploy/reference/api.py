"""docs/reference/api.md: the operations of the API, from its OpenAPI document."""

import json
from collections.abc import Iterator
from typing import Any

from deploy.reference.markdown import code, one_line, page, table
from deploy.reference.problem_codes import PLATFORM

INTRODUCTION = """
Every operation of the REST API. `/api/docs/` of an installation shows the same with all fields, and sends requests;
`/api/schema/` is the OpenAPI 3.1 document. Errors: [codes](errors.md).
How to [retry safely](../how-to/retry-requests.md).
"""
METHODS = ("get", "post", "put", "patch", "delete")


def api_page() -> str:
    """Return the page."""
    document = json.loads((PLATFORM / "api" / "openapi.json").read_text(encoding="utf-8"))
    parts = []
    for tag in sorted(document["tags"], key=lambda tag: str(tag["name"])):
        operations = table(("request", "what it does"), _operations(document, tag["name"]))
        parts += [f"## {tag['name']}", tag["description"], operations]
    return page("API", INTRODUCTION, document["info"]["description"], *parts)


def _operations(document: dict[str, Any], tag: str) -> Iterator[tuple[str, str]]:
    for path, operations in document["paths"].items():
        for method in METHODS:
            operation = operations.get(method, {})
            if tag in operation.get("tags", []):
                text = f"**{operation['summary']}.** {operation.get('description', '')}"
                yield code(f"{method.upper()} {path}"), one_line(text)
