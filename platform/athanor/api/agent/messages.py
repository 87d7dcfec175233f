"""Read the messages of compute nodes.

They are JSON of the trainer's contract, whose types validate the bytes directly: to decode a batch of a thousand points
first and validate it afterwards takes twice the time. So they do not pass through `athanor.api.bodies`, but a refused
message names each wrong field, its value and the remedy in the same way.
"""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from rest_framework.request import Request

from athanor.core.errors import FieldProblem, Invalid

Message = TypeVar("Message", bound=BaseModel)
MAX_PROBLEMS = 20  # named in one response


def parse_message(request: Request, type_: type[Message], *, may_contain_nul: bool = False) -> Message:
    """Return the message in the body of a request. Raises Invalid naming each wrong field and its value.

    NUL, which text columns of the database cannot contain, is replaced: a message is not refused for one, since the
    text of an exception may contain it. `may_contain_nul` leaves it, for messages that are stored as bytes.
    """
    body = request.body if may_contain_nul else request.body.replace(rb"\u0000", rb"\ufffd")
    try:
        return type_.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[:MAX_PROBLEMS]
        problems = tuple(
            FieldProblem("/" + "/".join(str(piece) for piece in item["loc"]), item["type"], _describe(item))
            for item in found
        )
        raise Invalid(
            "invalid_message",
            f"not a valid {type_.__name__}: {problems[0].pointer}: {problems[0].detail}",
            remedy="correct the field; if a trainer sent it, use the trainer of this platform's version",
            problems=problems,
        ) from error


def _describe(item: ErrorDetails) -> str:
    """Return what is wrong with a field, and its value if that is a number."""
    value = item["input"]
    return f"{item['msg']}, not {value}" if isinstance(value, int | float) else item["msg"]
