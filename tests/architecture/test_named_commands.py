"""Commands that are named in texts of the code exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main
from django.core.management import get_commands

from athanor.cli.main import app

REPOSITORY = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("platform", "trainer", "workers", "deploy", "frontend/src")
    for path in sorted((REPOSITORY / folder).rglob("*.*"))
    if path.suffix in (".py", ".ts", ".tsx") and "node_modules" not in path.parts
]
QUOTED = re.compile(r"`(make|athanor|manage\.py) ([^`\n]+)`")


def named() -> Iterator[tuple[str, str, str]]:
    """Yield file, program and the rest of each quoted command."""
    for path in SOURCES:
        for program, rest in QUOTED.findall(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(REPOSITORY)), program, rest


def words_of(rest: str) -> list[str]:
    """The leading words that name a command: no option, placeholder or value."""
    words = []
    for word in rest.split():
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", word):
            break
        words.append(word)
    return words


def is_command_of_athanor(words: list[str]) -> bool:
    found: click.Command = typer.main.get_command(app)
    for word in words:
        if not isinstance(found, click.Group):
            return True  # an argument
        if word not in found.commands:
            return False
        found = found.commands[word]
    return True


def exists(program: str, rest: str) -> bool:
    words = words_of(rest)
    if not words:
        return True
    if program == "make":
        return re.search(rf"^{words[0]}:", (REPOSITORY / "Makefile").read_text(), re.MULTILINE) is not None
    if program == "manage.py":
        return words[0] in get_commands()
    return is_command_of_athanor(words)


@pytest.mark.parametrize(("program", "rest"), sorted({(program, rest) for _, program, rest in named()}))
def test_a_command_that_a_text_names_exists(program: str, rest: str) -> None:
    places = [file for file, *command in named() if command == [program, rest]]
    assert exists(program, rest), f"`{program} {rest}` in {places}"
