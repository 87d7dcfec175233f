"""Errors of the platform as errors of a command: the message and the remedy, without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from athanor.core.errors import AthanorError


@contextmanager
def as_command_errors() -> Iterator[None]:
    """Translate the platform's errors."""
    try:
        yield
    except AthanorError as error:
        raise CommandError(f"{error.message}: {error.remedy}") from error
