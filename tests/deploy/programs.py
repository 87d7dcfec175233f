"""Whether a command line of a chart or unit is one that the platform's programs accept."""

import argparse
import sys
from typing import Any
from unittest import mock

from django.core.management import load_command_class

from athanor.config import program


class Parsed(Exception):
    """Ends `program.main` after its arguments are parsed."""


def parse(*arguments: str) -> argparse.Namespace:
    """Return what `python -m athanor.config.program ARGUMENTS` takes them for, without running it.

    Raises SystemExit for arguments that it refuses. Those of a command of manage.py are parsed by that command.
    """
    original = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, *rest: Any, **options: Any) -> Any:
        raise Parsed(original(self, *rest, **options))

    with (
        mock.patch.object(sys, "argv", ["program", *arguments]),
        mock.patch.object(argparse.ArgumentParser, "parse_args", stop),
    ):
        try:
            program.main()
        except Parsed as parsed:
            found: argparse.Namespace = parsed.args[0]
    if found.program == "manage":
        name, *rest = found.arguments
        load_command_class("athanor.config", name).create_parser("manage.py", name).parse_args(rest)
    return found
