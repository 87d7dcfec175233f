"""Exit codes, a stable interface for scripts, and the errors behind them."""

import functools
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec, TypeVar

import typer

from athanor.cli.plain import plain

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    JOB_FAILED = 1
    USAGE = 2  # also a spec the server refuses
    AUTHENTICATION = 3
    NOT_FOUND = 4
    SERVER = 5  # unreachable, or it failed; also a damaged download
    CANCELLED = 6
    INTERRUPTED = 130


class CliError(Exception):
    """An error message with its remedy; `details` are further lines, one per field."""

    def __init__(self, exit_code: ExitCode, message: str, details: list[str] | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.details = details or []


def reports_errors(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Turn a CliError into lines on stderr and an exit code; Ctrl-C into 130 without a traceback."""

    @functools.wraps(command)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except CliError as error:
            print(plain(f"athanor: {error}"), file=sys.stderr)
            for line in error.details:
                print(plain(f"  {line}"), file=sys.stderr)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            print("athanor: interrupted; submitted jobs continue", file=sys.stderr)
            raise typer.Exit(ExitCode.INTERRUPTED) from error
        except BrokenPipeError as error:  # `athanor list | head`
            sys.stderr.close()
            raise typer.Exit(ExitCode.OK) from error

    return wrapped
