"""The fenced blocks of README and docs, for the tests that run them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
FENCE = re.compile(r"^([ ]*)```(\w*)\n(.*?)^\1```", re.M | re.S)


@dataclass(frozen=True)
class Example:
    """`place` is the path of the page and the line of the block; `text` is without the block's own indent."""

    place: str
    language: str
    text: str


def examples() -> Iterator[Example]:
    for page in PAGES:
        source = page.read_text()
        for found in FENCE.finditer(source):
            indent, language, text = found.groups()
            line = source[: found.start()].count("\n") + 1
            dedented = re.sub(rf"^{indent}", "", text, flags=re.M)
            yield Example(f"{page.relative_to(REPOSITORY)}:{line}", language, dedented)


EXAMPLES = list(examples())
