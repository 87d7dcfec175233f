"""One line per record, as text or JSON: time, level, logger, message, and the ids bound to the current work."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

_IDS = frozenset({"request", "job", "attempt", "user", "token", "cluster", "team", "delivery"})
_bound: ContextVar[dict[str, str]] = ContextVar("bound", default={})  # noqa: B039 - replaced, never changed


@contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Add ids such as job=... or request=... to every record of the block."""
    token = _bound.set({**_bound.get(), **ids})
    try:
        yield
    finally:
        _bound.reset(token)


def bind(**ids: str) -> None:
    """Add further ids until the enclosing `bound` block ends."""
    _bound.set({**_bound.get(), **ids})


def bound_id(name: str) -> str:
    """Return a bound id; empty if it is not bound."""
    return _bound.get().get(name, "")


class BoundFormatter(logging.Formatter):
    """A formatter that appends the bound ids."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the formatted record, followed by the bound ids in brackets."""
        line = super().format(record)
        ids = " ".join(f"{name}={value}" for name, value in _bound.get().items())
        return f"{line} [{ids}]" if ids else line


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line. The bound ids are its fields, such as `request_id`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{f"{name}_id" if name in _IDS else name: value for name, value in _bound.get().items()},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
