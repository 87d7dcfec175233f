"""Errors that a caller can fix. Each has a stable code; the API turns them into RFC 9457 problems."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldProblem:
    """One thing wrong with one field. `pointer` is an RFC 6901 JSON pointer into what was sent."""

    pointer: str
    code: str
    detail: str


class AthanorError(Exception):
    """An error that a caller can fix: what is wrong (`message`), and what to do (`remedy`)."""

    status = 400
    title = "Bad request"

    def __init__(self, code: str, message: str, *, remedy: str = "", problems: tuple[FieldProblem, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.problems = problems
        self.extra: dict[str, object] = {}  # further members of the problem document


class Unauthenticated(AthanorError):
    """The request has no valid credential."""

    status = 401
    title = "Authentication needed"


class SecondFactorRequired(Unauthenticated):
    """The password is correct and a second factor is missing. `kinds` are those that the user has."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__(
            "second_factor_required",
            "the password is correct; this account also needs a second factor",
            remedy="send a code or a passkey's assertion to POST /api/v1/session:second-factor with the same cookies "
            "within 5 minutes",
        )
        self.extra = {"kinds": kinds}


class Forbidden(AthanorError):
    """The caller is authenticated but lacks the permission."""

    status = 403
    title = "Not allowed"


class NotFound(AthanorError):
    """The object does not exist, or the caller may not see it: the message is the same for both."""

    status = 404
    title = "Not found"

    def __init__(self, what: str, identifier: str, *, remedy: str = "check the id and the team of your token") -> None:
        super().__init__("not_found", f"there is no {what} {identifier!r}, or none that you may see", remedy=remedy)


class RequestTimeout(AthanorError):
    """The request's body did not arrive in time."""

    status = 408
    title = "Request timeout"


class Conflict(AthanorError):
    """The current state does not allow the request."""

    status = 409
    title = "Conflict"

    def __init__(
        self,
        code: str,
        message: str,
        *,
        remedy: str = "",
        retry_after_seconds: int | None = None,
        extra: dict[str, object] | None = None,
    ) -> None:
        super().__init__(code, message, remedy=remedy)
        self.retry_after_seconds = retry_after_seconds
        self.extra = extra or {}


class Gone(AthanorError):
    """The object existed and has been removed permanently."""

    status = 410
    title = "Gone"


class PreconditionFailed(AthanorError):
    """The If-Match header does not match the object's current ETag."""

    status = 412
    title = "Precondition failed"


class TooLarge(AthanorError):
    """The request's body exceeds a size limit."""

    status = 413
    title = "Content too large"


class Invalid(AthanorError):
    """The request is well-formed but its content is not valid; `problems` name the fields."""

    status = 422
    title = "Invalid content"


class TooManyRequests(AthanorError):
    """A rate limit is exceeded. `retry_after_seconds` is sent as Retry-After."""

    status = 429
    title = "Too many requests"

    def __init__(self, code: str, message: str, *, remedy: str, retry_after_seconds: int) -> None:
        super().__init__(code, message, remedy=remedy)
        self.retry_after_seconds = retry_after_seconds


class Misconfigured(AthanorError):
    """The platform was started with settings that do not fit its data; only its administrator can fix that."""

    status = 500
    title = "Misconfigured"


class Unavailable(AthanorError):
    """A part that the platform needs does not answer; the same request may succeed later."""

    status = 503
    title = "Temporarily unavailable"
