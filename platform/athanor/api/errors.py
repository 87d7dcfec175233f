"""Every error as RFC 9457 problem+json with a stable `code`."""

import logging
from http import HTTPStatus
from typing import Any

import psycopg
from django.core.exceptions import PermissionDenied
from django.db import DataError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions
from rest_framework.response import Response

from athanor.core.disks import require_space
from athanor.core.errors import AthanorError, Conflict, TooManyRequests, Unavailable
from athanor.core.logging import bound_id

log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
FRAMEWORK_REMEDIES = {
    "authentication_failed": "sign in again, or send a valid token as Authorization: Bearer TOKEN",
    "invalid": "fix the fields in errors",
    "method_not_allowed": "use a method that the header Allow names",
    "not_acceptable": "leave the header Accept out, or send Accept: application/json",
    "not_authenticated": "sign in, or send a token as Authorization: Bearer TOKEN",
    "not_found": "check the id and the team of your token",
    "parse_error": "correct the body; /api/docs/ shows it",
    "permission_denied": "ask an administrator of the team for a role that allows it",
    "unsupported_media_type": "send the body as application/json, or as what /api/docs/ names for this request",
}
"""Remedies of the exceptions of Django REST framework, by code."""


def problem_document(status: int, title: str, code: str, detail: str, **more: Any) -> dict[str, Any]:
    """Return the body of an error. The request id is the one that is bound to the current work, or one of `more`."""
    return {
        "type": f"urn:athanor:error:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": bound_id("request"),
        **{name: value for name, value in more.items() if value},
    }


def problem(status: int, title: str, code: str, detail: str, **more: Any) -> Response:
    """Return the response of an error."""
    return Response(problem_document(status, title, code, detail, **more), status=status, content_type=CONTENT_TYPE)


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the problem for an exception, as the exception handler of Django REST framework."""
    if isinstance(error, AthanorError):
        return _from_athanor(error)
    if isinstance(error, Http404):
        return problem(404, "Not found", "not_found", "there is nothing at this address", remedy="see /api/docs/")
    if isinstance(error, PermissionDenied):
        remedy = FRAMEWORK_REMEDIES["permission_denied"]
        return problem(403, "Not allowed", "permission_denied", str(error) or "this is not allowed", remedy=remedy)
    if isinstance(error, exceptions.APIException):
        return _from_framework(error)
    if isinstance(error, UnreadablePostError):
        return problem(400, "Bad request", "body_incomplete", "the body broke off", remedy="send it again")
    if isinstance(error, OperationalError):
        log.warning("database unavailable: %s", error)
        return _from_operational(error)
    if isinstance(error.__cause__, psycopg.errors.ReadOnlySqlTransaction):
        log.warning("database read-only: %s", error)
        return _from_athanor(
            Unavailable("database_read_only", "the database takes no writes", remedy="try again later")
        )
    if isinstance(error, DataError) and _is_of_nul(error):
        detail = "the request holds a NUL character, which nothing here can contain"
        return problem(422, "Invalid", "invalid_text", detail, remedy="leave it out")
    log.exception("unexpected error", exc_info=error)
    return problem(
        500, "Internal error", "internal_error", "the platform made an error", remedy="report the request id"
    )


def _from_operational(error: OperationalError) -> Response:
    """Return the problem of a database that does not work, which may be because a disk is full."""
    try:
        require_space()
    except Unavailable as shortage:
        return _from_athanor(shortage)
    if isinstance(error.__cause__, psycopg.errors.DiskFull):
        remedy = "free space on the disk of the database; then send the request again"
        return _from_athanor(Unavailable("disk_full", "the disk of the database is full", remedy=remedy))
    return _from_athanor(
        Unavailable("database_unavailable", "the database does not answer", remedy="try again in a few seconds")
    )


def _is_of_nul(error: DataError) -> bool:
    """Return whether a NUL character was refused: by psycopg in a text, by PostgreSQL escaped in JSON."""
    return isinstance(error.__cause__, psycopg.errors.UntranslatableCharacter) or "NUL (0x00)" in str(error)


def _from_athanor(error: AthanorError) -> Response:
    response = problem(
        error.status,
        error.title,
        error.code,
        error.message,
        remedy=error.remedy,
        errors=[vars(item) for item in error.problems],
    )
    response.data.update(error.extra)
    if isinstance(error, Conflict | TooManyRequests) and error.retry_after_seconds is not None:
        response["Retry-After"] = str(error.retry_after_seconds)
    if error.status == 503:
        response["Retry-After"] = "2"
    if error.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response


def _from_framework(error: exceptions.APIException) -> Response:
    code = error.get_codes()
    problems = []
    if isinstance(error, exceptions.ValidationError):
        problems = list(_pointers(error.get_full_details(), ""))
        detail, code = "the request cannot be used", "invalid"
        status = 422
    else:
        detail, status = str(error.detail), error.status_code
    remedy = FRAMEWORK_REMEDIES.get(str(code))
    response = problem(status, HTTPStatus(status).phrase, str(code), detail, remedy=remedy, errors=problems)
    if status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response


def _pointers(details: Any, pointer: str) -> Any:
    if isinstance(details, dict) and {"message", "code"} <= details.keys():
        yield {"pointer": pointer or "/", "code": details["code"], "detail": str(details["message"])}
    elif isinstance(details, dict):
        for name, inner in details.items():
            yield from _pointers(inner, f"{pointer}/{name}")
    elif isinstance(details, list):
        for inner in details:
            yield from _pointers(inner, pointer)
