"""Serializers of request bodies: they accept exactly what the OpenAPI document describes.

Django REST framework ignores fields that it does not know and converts values (`"5"` to 5, `"off"` to false). Ignored,
a misspelt `expires_in_day` would make a token that lives for a year; so both are refused.
"""

import difflib
import re
from collections.abc import Mapping
from decimal import Decimal
from math import isclose
from typing import Any, TypeVar

from drf_spectacular.extensions import OpenApiSerializerExtension, OpenApiSerializerFieldExtension
from pydantic import BaseModel
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.fields import empty
from rest_framework.request import Request

from athanor.specs.validation import parsed

Document = TypeVar("Document", bound=BaseModel)
NOT_BLANK = r"[^\s\x1c-\x1f\x85]"  # as str.strip has it; JSON Schema's \s is smaller
_LISTS = (serializers.ListField, serializers.ListSerializer)
_TEXTS = (serializers.CharField, serializers.DateTimeField)


class RequestSerializer(serializers.Serializer[Any]):
    """The body of a request. It refuses unknown fields, and values of another JSON type than the document says."""

    def get_fields(self) -> dict[str, Any]:
        """Return the fields; an error of one with choices names them."""
        fields = super().get_fields()
        for field in fields.values():
            one = field.child if isinstance(field, serializers.ListField) else field
            if isinstance(one, serializers.ChoiceField):
                known = ", ".join(str(choice) for choice in one.choices)
                one.error_messages["invalid_choice"] = f'"{{input}}" is none of {known}'
        return fields

    def to_internal_value(self, data: Any) -> Any:
        """Validate a body. Raises ValidationError naming each unknown field and each value of a wrong type."""
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)
        fields = {name: field for name, field in self.fields.items() if not field.read_only}
        errors: dict[str, Any] = {
            str(name): [ErrorDetail(_hint(str(name), list(fields)), code="unknown_field")]
            for name in data
            if name not in fields
        }
        for name, field in fields.items():
            expected = _mismatch(field, data.get(name))
            if expected:
                errors[name] = [ErrorDetail(f"{name} is not {expected}", code="type")]
        if errors:
            raise ValidationError(errors)
        return super().to_internal_value(data)


class AmountField(serializers.DecimalField):
    """A decimal number that is not negative, as a string or as a JSON number of no more decimal places."""

    def __init__(self, *, max_digits: int, decimal_places: int, **options: Any) -> None:
        super().__init__(max_digits=max_digits, decimal_places=decimal_places, min_value=0, **options)
        whole = max_digits - decimal_places
        self.text_pattern = rf"^[0-9]{{1,{whole}}}(\.[0-9]{{1,{decimal_places}}})?$"
        self.largest = 10**whole - 1
        self.places = decimal_places

    def to_internal_value(self, data: Any) -> Decimal:
        """Return the amount, with a JSON number rounded to the decimal places of the field."""
        if isinstance(data, str) and not re.match(self.text_pattern, data):
            self.fail("invalid")
        if isinstance(data, float):
            rounded = round(data, self.places)  # 3 * 0.1 is meant to be 0.3
            data = f"{rounded:.{self.places}f}" if isclose(rounded, data, rel_tol=1e-12) else repr(data)
        return super().to_internal_value(data)


def parse_body(request: Request, form: type[serializers.Serializer[Any]], *, partial: bool = False) -> dict[str, Any]:
    """Return the validated fields of a request's body.

    Raises ValidationError naming each wrong field by JSON pointer, which becomes a 422.
    """
    serializer = form(data=decode_body(request), partial=partial)
    serializer.is_valid(raise_exception=True)
    fields: dict[str, Any] = dict(serializer.validated_data)
    return fields


def parse_document(request: Request, model: type[Document], code: str, name: str) -> Document:
    """Return the body as a document that users write in files, validated by its pydantic model.

    Raises Invalid with `code`, naming each wrong field by JSON pointer. `name` is that of the document in messages.
    """
    return parsed(model, decode_body(request), code, name)


def decode_body(request: Request) -> Any:
    """Return the body as the parser of its media type decoded it, for a service that validates it.

    Raises ParseError for a body that is not what its Content-Type says.
    """
    return request.data


def read_field(request: Request, name: str) -> Any:
    """Return a field of the body before it is validated. None for a body without it, or that is no object."""
    body = decode_body(request)
    return body.get(name) if isinstance(body, dict) else None


def read_upload(request: Request, name: str) -> Any:
    """Return the UploadedFile of a multipart form's field, None without one."""
    return request.FILES.get(name)


def open_body(request: Request) -> Any:
    """Return the body as a file to be read piece by piece, None for an empty one. Its view has a RawParser."""
    return request.stream


def _mismatch(field: Any, value: Any) -> str:
    """Return what a value should be where its JSON type is another; empty where it fits, or is null."""
    if value is None or value is empty:
        return ""
    expected = ""
    if isinstance(field, _LISTS):
        if not isinstance(value, list):
            expected = "a list"
        elif isinstance(field, serializers.ListField):
            inner = next(filter(None, (_mismatch(field.child, item) for item in value)), "")
            expected = inner and f"a list of which each is {inner}"
    elif isinstance(field, serializers.BooleanField):
        expected = "" if isinstance(value, bool) else "true or false"
    elif isinstance(field, serializers.IntegerField):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        expected = "" if whole and not isinstance(value, bool) else "a whole number"
    elif isinstance(field, serializers.FloatField):
        expected = "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
    elif isinstance(field, AmountField):
        fits = isinstance(value, int | float | str) and not isinstance(value, bool)
        expected = "" if fits else "a number, or a string of one"
    elif isinstance(field, _TEXTS) or (isinstance(field, serializers.ChoiceField) and _of_texts(field)):
        expected = "" if isinstance(value, str) else "a string"
    return expected


def _of_texts(field: serializers.ChoiceField) -> bool:
    return all(isinstance(choice, str) for choice in field.choices)


def _hint(name: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"unknown field {name[:60]!r}; did you mean {nearest[0]!r}?"
    return f"unknown field {name[:60]!r}; known here: {', '.join(sorted(known)) or 'none'}"


class _StrictSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call] # its hook for subclasses
    """What RequestSerializer enforces beyond what drf-spectacular finds out."""

    target_class = RequestSerializer
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema: dict[str, Any] = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        if not vars(type(self.target)).get("__doc__"):
            schema.pop("description", None)  # of RequestSerializer itself
        if direction != "request":
            return schema
        schema["additionalProperties"] = False
        required = [name for name, field in self.target.fields.items() if field.required and not field.read_only]
        if required and (auto_schema.method == "PATCH" or not self.target.partial):
            schema["required"] = sorted(required)  # in a PATCH too
        for name, field in self.target.fields.items():
            _tighten(schema.get("properties", {}).get(name), field)
        return schema


class _AmountSchema(OpenApiSerializerFieldExtension):  # type: ignore[no-untyped-call] # its hook for subclasses
    target_class = AmountField

    def map_serializer_field(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        field = self.target
        if direction == "response":
            return {"type": "string", "format": "decimal"}
        return {
            "anyOf": [
                {"type": "string", "pattern": field.text_pattern},
                {"type": "number", "minimum": 0, "maximum": field.largest, "multipleOf": 10.0**-field.places},
            ]
        }


def _tighten(schema: Any, field: Any) -> None:
    if not schema:
        return
    if isinstance(field, _LISTS) and not field.allow_empty:
        schema.setdefault("minItems", 1)
    if isinstance(field, serializers.ListField):
        _tighten(schema.get("items"), field.child)
    is_text = isinstance(field, serializers.CharField) and schema.get("type") == "string"
    if is_text and field.trim_whitespace and not field.allow_blank and "format" not in schema:
        schema.setdefault("pattern", NOT_BLANK)
