"""Sections of a model card by their headings."""

import re

HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
FENCE = re.compile(r" {0,3}(```+|~~~+)")


def card_sections(card: str) -> dict[str, str]:
    """Return the text below each heading of a card, up to the next one of its level or above, by case-folded heading.

    Of several with the same heading, the first. Headings are those with `#`, outside of blocks of code.
    """
    lines = card.splitlines()
    headings: list[tuple[int, int, str]] = []
    fence = ""
    for number, line in enumerate(lines):
        opened = FENCE.match(line)
        if opened and (not fence or opened[1].startswith(fence)):
            fence = "" if fence else opened[1]
        elif not fence and (found := HEADING.match(line)):
            headings.append((number, len(found[1]), found[2].casefold()))
    sections: dict[str, str] = {}
    for at, (number, level, title) in enumerate(headings):
        end = next((line for line, other, _ in headings[at + 1 :] if other <= level), len(lines))
        sections.setdefault(title, "\n".join(lines[number + 1 : end]).strip())
    return sections
