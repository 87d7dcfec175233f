"""One line per record: time, level, logger, message, and the ids that are bound to the current work."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_bound: ContextVar[dict[str, str]] = ContextVar("bound", default={})  # noqa: B039 - replaced, never changed


@contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Names such as job=..., request=... on every record within."""
    token = _bound.set({**_bound.get(), **ids})
    try:
        yield
    finally:
        _bound.reset(token)


def bind(**ids: str) -> None:
    """Further names for the rest of the enclosing `bound` block, which takes them away again at its end."""
    _bound.set({**_bound.get(), **ids})


def bound_id(name: str) -> str:
    return _bound.get().get(name, "")


class BoundFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        ids = " ".join(f"{name}={value}" for name, value in _bound.get().items())
        return f"{line} [{ids}]" if ids else line
