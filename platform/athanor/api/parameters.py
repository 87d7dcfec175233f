"""Query parameters: what the API document says of them and what is read are one definition."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from athanor.core.errors import FieldProblem, Invalid

MAX_NUMBER = 2**62  # more does not fit an integer column
MAX_INT32 = 2**31 - 1
_WHOLE = re.compile(r"-?[0-9]{1,19}")


def refusal(name: str, code: str, detail: str, remedy: str = "") -> Invalid:
    """Return the error for a wrong value of a query parameter."""
    problem = FieldProblem(f"/{name}", code, detail)
    return Invalid("invalid_parameter", detail, remedy=remedy or f"correct {name}", problems=(problem,))


def read_flag(request: Request, name: str) -> bool:
    """Return whether a query parameter is `true`; False when it is absent. Raises Invalid for another value."""
    text = request.query_params.get(name, "false")
    if text not in ("true", "false"):
        detail = f"{name}={text[:40]!r} is neither true nor false"
        raise refusal(name, "boolean", detail, f"give {name}=true, or leave it out")
    return text == "true"


@dataclass(frozen=True)
class IntegerParameter:
    """A whole number within bounds. Without `default` it may be absent: `read_optional` then returns None."""

    name: str
    description: str = ""
    min_value: int = 0
    max_value: int = MAX_NUMBER
    default: int | None = None

    @property
    def openapi(self) -> OpenApiParameter:
        """The parameter for the API document."""
        schema = {"type": "integer", "minimum": self.min_value, "maximum": self.max_value}
        if self.default is not None:
            schema["default"] = self.default
        return OpenApiParameter(self.name, schema, description=self.description)

    def read_optional(self, request: Request) -> int | None:
        """Return the number, None when the parameter is absent. Raises Invalid naming it."""
        text = request.query_params.get(self.name)
        if text is None:
            return None
        value = int(text) if _WHOLE.fullmatch(text) else None
        if value is None or not self.min_value <= value <= self.max_value:
            detail = f"{self.name}={text[:40]!r} is not a whole number from {self.min_value} to {self.max_value}"
            raise refusal(self.name, "range", detail)
        return value

    def read(self, request: Request) -> int:
        """Return the number, or the default. Raises Invalid naming the parameter."""
        value = self.read_optional(request)
        if value is None:
            assert self.default is not None, f"{self.name} has no default"
            return self.default
        return value


def time(request: Request, name: str) -> datetime | None:
    """Return a time of the query string, None when the parameter is absent. Raises Invalid naming it."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        found = parse_datetime(text)
        if found is not None:
            # The database refuses zones of 16 hours and more.
            found = found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        found = None
    if found is None:
        detail = f"{name}={text[:40]!r} is no RFC 3339 time with a zone"
        raise refusal(name, "time", detail, "write it like 2026-01-31T12:00:00Z")
    return found


def comma_separated(name: str, values: list[str], description: str) -> OpenApiParameter:
    """Document a parameter of some of these values, separated by commas. An empty one counts as absent."""
    one = f"({'|'.join(re.escape(value) for value in values)})"
    return OpenApiParameter(name, {"type": "string", "pattern": f"^({one}(,{one})*)?$"}, description=description)


def separated(text: str) -> list[str]:
    """Return the values of a parameter that `comma_separated` documents, not checked yet."""
    return text.split(",") if text else []
