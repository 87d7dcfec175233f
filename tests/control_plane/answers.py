"""Assertions about answers of the API."""

from typing import Any


def refused(answer: Any, code: str, *said: str) -> None:
    """Assert that a request was refused with this code, and that the remedy says these words."""
    problem = answer.json()
    assert problem["code"] == code, problem
    for words in said:
        assert words in problem["remedy"], problem["remedy"]


def done(answer: Any) -> Any:
    """Assert that a request was accepted. Return its body."""
    assert answer.status_code in (200, 201, 202, 204), answer.content
    return answer.json() if answer.content else None
