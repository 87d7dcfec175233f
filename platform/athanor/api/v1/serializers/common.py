"""Serializers that several resources share, and the problems that any operation may answer with."""

from typing import Any

from drf_spectacular.utils import OpenApiResponse, inline_serializer
from rest_framework import serializers


def enum_values(members: Any) -> list[str]:
    """Return the values of an enumeration."""
    return [member.value for member in members]


def build_serializer(name: str, description: str, fields: dict[str, Any], **options: Any) -> Any:
    """Return a serializer of these fields: the component `name` of the OpenAPI document, with this description."""
    serializer = inline_serializer(name, fields, **options)
    type(serializer).__doc__ = description
    return serializer


def page_serializer(name: str, item: type[serializers.Serializer[Any]]) -> Any:
    """Return the serializer of one page of a list, as `pagination.paginated_response` builds it.

    `name` is its component in the OpenAPI document.
    """
    fields = {
        "items": item(many=True, help_text="Objects of this page."),
        "next_cursor": serializers.CharField(
            allow_null=True, help_text="Send it as `cursor` for the next page. Null on the last page."
        ),
    }
    component = item.__name__.removesuffix("Serializer")
    return build_serializer(name, f"One page of a list of {component} objects.", fields)


class NamedSerializer(serializers.Serializer[Any]):
    """A reference to an object."""

    id = serializers.CharField(help_text="Identifier of the object. It never changes.")
    name = serializers.CharField(help_text="Name of the object, for people.")


class ReasonSerializer(serializers.Serializer[Any]):
    """Why a job waits or why a job or attempt ended."""

    code = serializers.CharField(
        help_text="Stable code of the reason, such as `waiting_for_capacity` or `out_of_memory`."
    )
    message = serializers.CharField(help_text="The reason in words, with details of this case.")
    remedy = serializers.CharField(help_text="What to do about it.")
    blame = serializers.CharField(
        help_text="Where the cause lies: `user`, `platform`, `infrastructure`, `preemptor` or `nobody`."
    )
    runbook = serializers.CharField(
        allow_blank=True,
        help_text="Path of the page with checks, causes and remedies, on this server. Empty for `completed`.",
    )


class FieldProblemSerializer(serializers.Serializer[Any]):
    """What is wrong with one field of a request."""

    pointer = serializers.CharField(
        help_text=(
            "JSON pointer to the field of the request, `/` for the request itself. A query parameter or "
            "header is named `/NAME`."
        )
    )
    code = serializers.CharField(help_text="Stable code of the problem.")
    detail = serializers.CharField(help_text="What is wrong, for people.")


class ProblemSerializer(serializers.Serializer[Any]):
    """An error: a problem document of RFC 9457."""

    type = serializers.CharField(help_text="URN of the kind of error, `urn:athanor:error:` followed by the code.")
    title = serializers.CharField(help_text="Short name of the kind of error.")
    status = serializers.IntegerField(help_text="HTTP status of the response.")
    code = serializers.CharField(help_text="Stable code of the error, for programs.")
    detail = serializers.CharField(help_text="What is wrong in this case, for people.")
    remedy = serializers.CharField(required=False, help_text="What to do about it. Absent if nothing is known to help.")
    request_id = serializers.CharField(help_text="Id of the request. Logs and the audit trail have it too.")
    errors = FieldProblemSerializer(  # type: ignore[assignment] # a field, which DRF takes off the class
        many=True,
        required=False,
        help_text="Each problem of the request, with its field. Absent if the error is about no field.",
    )


def _problem(description: str) -> OpenApiResponse:
    return OpenApiResponse(ProblemSerializer, description=description)


# Responses that any operation may have besides its own.
PROBLEMS: dict[Any, Any] = {
    (status, "application/problem+json"): _problem(description)
    for status, description in {
        400: "The body is not what its Content-Type says.",
        401: "There is no valid token or session.",
        403: "Your role or your token's scopes do not allow it.",
        404: "It does not exist, or you may not see it.",
        406: "The Accept header allows none of the media types of this operation.",
        408: "The body did not arrive in time.",
        409: "Its present state does not allow it, or the same request is in progress; see `detail`.",
        412: "It has changed since you read it (If-Match).",
        413: "The body is larger than the limit of this address.",
        415: "A body of this Content-Type is not accepted.",
        422: "The request is not valid; see `errors`.",
        429: "Too many requests. Retry-After says when to try again.",
        503: "A part of the platform is unavailable. Retry-After says when to try again.",
    }.items()
}
# Of what is stored for a time only: docs/operations/retention.md.
NO_LONGER_STORED: dict[Any, Any] = {
    (410, "application/problem+json"): _problem("It existed, and is no longer stored: its time is over.")
}
