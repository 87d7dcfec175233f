"""What is wrong with a text, and the scripts of its letters. Counts of bytes are computed once for all checks."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_MOJIBAKE = re.compile("Ã[\u0080-\u00bf]|â€|Â[\u00a0-\u00bf]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_ZERO_WIDTH = re.compile("[A-Za-z][\u200b-\u200d\u2060\ufeff]+[A-Za-z]")
_MIXED_SCRIPTS = re.compile("[A-Za-z][\u0400-\u04ff]|[\u0400-\u04ff][A-Za-z]")
_C1_CONTROL = re.compile("[\u0080-\u009f]")
_HTML = re.compile(
    r"</?(?:a|b|br|div|h[1-6]|img|li|p|script|span|style|table|td|tr|ul)(?:\s[^<>]{0,200})?/?>|&(?:amp|gt|lt|nbsp|quot);"
)
_RUN_CHARACTERS, _UNBROKEN_CHARACTERS = 64, 500
_RUN = re.compile(rf"([^\W_])\1{{{_RUN_CHARACTERS - 1}}}")
_UNBROKEN = re.compile(rf"[A-Za-z0-9+/=_%-]{{{_UNBROKEN_CHARACTERS}}}")
_MIN_LINES, _MIN_LINE_CHARACTERS, _MAX_LINE_SHARE = 5, 8, 0.5
_MIN_CHARACTERS, _MIN_LETTERS = 50, 0.3
_LEFT_ALONE = b"\t\n\f\r"


def _byte_set(members: bytes) -> NDArray[np.bool_]:
    found = np.zeros(256, dtype=bool)
    found[list(members)] = True
    return found


_ASCII_LETTERS = _byte_set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_LETTERS = _ASCII_LETTERS | (np.arange(256) >= 128)
_SPACES = _byte_set(b" \t\n\r\f\v")
_CONTROLS = _byte_set(bytes(set(range(32)) - set(_LEFT_ALONE)) + b"\x7f")
_ENCODED = _ASCII_LETTERS | _byte_set(b"0123456789+/=_%-")


def check_text(text: str, data: Bytes, special_tokens: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (kind, detail) of each problem, each kind once. `data`: the text as UTF-8."""
    counts = np.bincount(data, minlength=256)
    if not text.isascii():
        yield from _non_ascii_problems(text)
    if counts[_CONTROLS].any() or (not text.isascii() and _C1_CONTROL.search(text)):
        yield "control_characters", ""
    yield from (("special_tokens", token) for token in [each for each in special_tokens if each in text][:1])
    visible = len(data) - int(counts[_SPACES].sum())
    if len(data) >= _MIN_CHARACTERS and counts[_LETTERS].sum() < _MIN_LETTERS * visible:
        yield "few_letters", f"{counts[_LETTERS].sum() / visible:.0%} letters"
    if _has_equal_block(data) and _RUN.search(text):
        yield "repeated_characters", ""
    if _has_encoded_block(data) and _UNBROKEN.search(text):
        yield "unbroken_run", ""
    if (counts[ord("<")] or counts[ord("&")]) and _HTML.search(text):
        yield "html_markup", ""
    if "ipsum" in text and "lorem ipsum" in text.lower():
        yield "placeholder_text", ""
    if counts[ord("\n")] >= _MIN_LINES - 1:
        yield from _repeated_lines(text)


def _non_ascii_problems(text: str) -> Iterator[tuple[str, str]]:
    if "\ufffd" in text:
        yield "replacement_character", ""
    if _MOJIBAKE.search(text):
        yield "mojibake", ""
    if _BIDI.search(text) or _ZERO_WIDTH.search(text):
        yield "invisible_characters", ""
    if _MIXED_SCRIPTS.search(text):
        yield "mixed_script_words", ""


def _repeated_lines(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    if len(lines) < _MIN_LINES:
        return
    line, count = Counter(lines).most_common(1)[0]
    if len(line) >= _MIN_LINE_CHARACTERS and count >= max(_MIN_LINES, _MAX_LINE_SHARE * len(lines)):
        yield "repeated_lines", f"{count} of {len(lines)} lines"


def _blocks(data: NDArray[np.generic], size: int) -> NDArray[np.generic]:
    return data[: len(data) // size * size].reshape(-1, size)


def _has_equal_block(data: Bytes) -> bool:
    """Return whether some aligned block has equal bytes; every run of twice its size has one."""
    blocks = _blocks(data, _RUN_CHARACTERS // 2)
    return bool((blocks == blocks[:, :1]).all(axis=1).any())


def _has_encoded_block(data: Bytes) -> bool:
    """Likewise for the characters of `_UNBROKEN`."""
    if len(data) < _UNBROKEN_CHARACTERS:
        return False
    return bool(_blocks(_ENCODED[data], _UNBROKEN_CHARACTERS // 2).all(axis=1).any())


class Scripts:
    """Counts of letters by the first word of their Unicode names (LATIN, CYRILLIC, CJK, ...)."""

    _MOST = 12  # named in the report; the others are OTHER

    def __init__(self) -> None:
        self._points: Counter[int] = Counter()
        self._ascii = 0

    def add(self, text: str, data: Bytes) -> None:
        """Count the letters of a text, of which `data` is the UTF-8."""
        self._ascii += int(_ASCII_LETTERS[data].sum())
        if not text.isascii():
            points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
            values, counts = np.unique(points[points >= 128], return_counts=True)
            self._points.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))

    def shares(self) -> dict[str, float]:
        """Return the share of the letters of each script, the most frequent first."""
        found = Counter({"LATIN": self._ascii} if self._ascii else {})
        for point, count in self._points.items():
            if unicodedata.category(chr(point)).startswith("L"):
                found[unicodedata.name(chr(point), "OTHER").split()[0]] += count
        total = sum(found.values())
        named = found.most_common(self._MOST)
        others = total - sum(count for _, count in named)
        shares = {name: count / total for name, count in named}
        return {**shares, "OTHER": shares.get("OTHER", 0.0) + others / total} if others else shares
