"""Text of the server on a terminal: log lines, names and messages come from data and from other users.

An escape sequence in them could rewrite what a reader has seen, set the title or the clipboard, or hide text.
"""

import re
from typing import Any

from rich.console import Console
from rich.text import Text

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erasing
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS and others, terminated
    r"|\x1b[ -/]*[0-~]"  # the other escapes; of an OSC that never ends, its beginning
)
# C0 but tab and newline, DEL, C1; marks that change the direction of text; separators of lines; halves of pairs.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    """Return `text` without terminal escape sequences and control characters; tabs and newlines stay."""
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


class PlainConsole(Console):
    """A console on which every string, of a line or of a table's cell, is made plain before it is styled.

    Names such as `dataset:books:` are printed as they are, not as emoji.
    """

    def __init__(self, **options: Any) -> None:
        """Create the console."""
        super().__init__(emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text without its control characters."""
        return super().render_str(plain(text), **options)
