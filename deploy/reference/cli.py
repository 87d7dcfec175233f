"""docs/reference/cli.md, from the commands of the `athanor` program."""

from collections.abc import Iterator
from typing import Any

import typer
import typer.main

from athanor.cli.main import app
from deploy.reference.markdown import code, page, table

INTRODUCTION = """
`athanor` talks to a platform over its API. `athanor login` stores the platform's address and a token; the environment
variables `ATHANOR_URL` and `ATHANOR_TOKEN` take precedence. Every command prints its help with `--help`.
"""


def cli_page() -> str:
    """Return the page: one section per command, in the order of the program's help."""
    root: Any = typer.main.get_command(app)
    return page("Command line", INTRODUCTION, *_sections(root, "athanor"))


def _sections(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        full = f"{path} {name}"
        context = typer.Context(command, info_name=full)
        yield f"## {code(full)}"
        yield command.help or ""
        if hasattr(command, "commands"):
            commands = ((code(f"{full} {each}"), inner.get_short_help_str(limit=200))
                        for each, inner in command.commands.items() if not inner.hidden)  # fmt: skip
            yield table(("command", "what it does"), commands)
            yield from _sections(command, full)
            continue
        yield f"```text\nUsage: {' '.join([full, *command.collect_usage_pieces(context)])}\n```"
        for kind in ("argument", "option"):
            rows = [_row(each, context) for each in command.params if each.param_type_name == kind and not each.hidden]
            if rows:
                yield table((kind, "meaning"), rows)


def _row(parameter: Any, context: Any) -> tuple[str, str]:
    name, meaning = parameter.get_help_record(context)
    return code(name), meaning
