"""`?fields=a,b` limits a response to these fields; `?expand=a` adds fields that lists leave out."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request

from athanor.core.errors import FieldProblem, Invalid

FIELDS = OpenApiParameter("fields", str, description="Only these fields of each object, separated by commas.")
EXPAND = OpenApiParameter("expand", str, description="Fields that lists leave out otherwise, separated by commas.")

Shape = type[serializers.Serializer[Any]]


def serialize(request: Request, shape: Shape, rows: Any, *, many: bool = False, usual: Shape | None = None) -> Any:
    """Serialize `rows` with the requested fields; without `fields`, with those of `usual` and the expanded ones.

    Raises Invalid naming an unknown field.
    """
    serializer: Any = shape(rows, many=many)
    fields = serializer.child.fields if many else serializer.fields
    wanted = _names(request, "fields", fields)
    if not wanted:
        wanted = set((usual or shape)().fields) | _names(request, "expand", fields)
    for name in set(fields) - wanted:
        fields.pop(name)
    return serializer.data


def _names(request: Request, parameter: str, known: Any) -> set[str]:
    asked = {name for name in request.query_params.get(parameter, "").split(",") if name}
    unknown = sorted(asked - set(known))
    if unknown:
        detail = f"{parameter}: there is no field {unknown[0]!r}; there are {', '.join(known)}"
        problem = FieldProblem(f"/{parameter}", "unknown_field", detail)
        raise Invalid("invalid_parameter", detail, remedy=f"correct {parameter}", problems=(problem,))
    return asked
