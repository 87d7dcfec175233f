"""Refuse query parameters that an operation does not have, and values that the document does not list.

Ignored, `stauts=failed` and `active=none` would be answered as if nothing had been asked.
"""

import difflib
import json
import re
from functools import lru_cache
from typing import Any

from django.http import HttpRequest, JsonResponse

from athanor.api import document
from athanor.api.errors import CONTENT_TYPE, problem_document

_CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")
# Filters by the names of labels, which the API document cannot list.
_PREFIXES = {"/api/v1/jobs": "label."}


@lru_cache(maxsize=1)
def _known() -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return the query parameters of each method and path of the API document, with the values of those that have a
    list of them."""
    paths: dict[str, dict[str, Any]] = json.loads(document.content())["paths"]
    return {
        (method, path): {
            each["name"]: each["schema"].get("enum", []) if each["schema"].get("type") == "string" else []
            for each in operation.get("parameters", [])
            if each["in"] == "query"
        }
        for path, operations in paths.items()
        for method, operation in operations.items()
    }


class QueryParametersMiddleware:
    """Refuses a request of the API with a query parameter that its operation does not have: 422."""

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        """Handle a request."""
        return self._get_response(request)

    def process_view(self, request: HttpRequest, view: Any, arguments: Any, named: Any) -> JsonResponse | None:
        """Return a problem for unknown query parameters or values, None if all are known."""
        if not request.GET or request.resolver_match is None:
            return None
        path = "/" + _CONVERTER.sub(r"{\1}", request.resolver_match.route)
        known = _known().get(((request.method or "").lower(), path))
        if known is None:
            return None
        prefix = _PREFIXES.get(path)
        unknown = [name for name in request.GET if name not in known and not (prefix and name.startswith(prefix))]
        if unknown:
            return _refusal("unknown_parameter", {name: _hint(name, known) for name in unknown}, "correct the name")
        wrong = {
            name: f"{name}={value!r} is none of {', '.join(known[name])}"
            for name, values in request.GET.lists()
            for value in values
            if known.get(name) and value not in known[name]
        }
        return _refusal("invalid_parameter", wrong, "correct the value") if wrong else None


def _refusal(code: str, details: dict[str, str], remedy: str) -> JsonResponse:
    errors = [{"pointer": f"/{name}", "code": code, "detail": detail} for name, detail in details.items()]
    body = problem_document(422, "Invalid content", code, errors[0]["detail"], remedy=remedy, errors=errors)
    return JsonResponse(body, status=422, content_type=CONTENT_TYPE)


def _hint(name: str, known: dict[str, list[str]]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"unknown query parameter {name!r}; did you mean {nearest[0]!r}?"
    return f"unknown query parameter {name!r}; known here: {', '.join(sorted(known)) or 'none'}"
