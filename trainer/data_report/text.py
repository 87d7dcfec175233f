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


class TextBatch:
    """Texts as bytes. `data`: the UTF-8 of all texts, each followed by a line end; `begins`: of each text in it."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [text.encode() for text in texts]
        self.texts = texts
        self.data: Bytes = np.frombuffer(b"".join(part for each in encoded for part in (each, b"\n")), dtype=np.uint8)
        self.sizes = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        self.begins = np.cumsum(self.sizes + 1) - self.sizes - 1
        keys = np.repeat(np.arange(len(texts)) * 256, self.sizes + 1)
        keys += self.data
        self.counts = np.bincount(keys, minlength=256 * len(texts)).reshape(-1, 256)
        self.counts[:, ord("\n")] -= 1
        self.non_ascii = np.flatnonzero(self.counts[:, 128:].any(axis=1)).tolist()

    def at(self, places: NDArray[np.int64]) -> list[int]:
        """Return the numbers of the texts in which these bytes are, each once."""
        found: list[int] = np.unique(np.searchsorted(self.begins, places, side="right") - 1).tolist()
        return found


def check_texts(batch: TextBatch, special_tokens: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield (number of the text, kind, detail) of each problem, each kind once for a text.

    Counts of bytes choose the texts on which an expression is tried.
    """
    texts, counts = batch.texts, batch.counts
    for number in batch.non_ascii:
        yield from ((number, kind, detail) for kind, detail in _non_ascii_problems(texts[number]))
    controls = np.flatnonzero(counts[:, _CONTROLS].any(axis=1)).tolist()
    c1_controls = [number for number in batch.non_ascii if _C1_CONTROL.search(texts[number])]
    yield from ((number, "control_characters", "") for number in sorted({*controls, *c1_controls}))
    yield from _special_tokens(texts, special_tokens)
    letters, visible = counts[:, _LETTERS].sum(axis=1), batch.sizes - counts[:, _SPACES].sum(axis=1)
    for number in np.flatnonzero((batch.sizes >= _MIN_CHARACTERS) & (letters < _MIN_LETTERS * visible)).tolist():
        yield number, "few_letters", f"{letters[number] / visible[number]:.0%} letters"
    for kind, expression, numbers in (
        ("repeated_characters", _RUN, batch.at(_equal_blocks(batch.data))),
        ("unbroken_run", _UNBROKEN, batch.at(_encoded_blocks(batch.data))),
        ("html_markup", _HTML, np.flatnonzero(counts[:, ord("<")] + counts[:, ord("&")]).tolist()),
    ):
        yield from ((number, kind, "") for number in numbers if expression.search(texts[number]))
    for number, text in enumerate(texts):
        if "ipsum" in text and "lorem ipsum" in text.lower():
            yield number, "placeholder_text", ""
    for number in np.flatnonzero(counts[:, ord("\n")] >= _MIN_LINES - 1).tolist():
        yield from ((number, kind, detail) for kind, detail in _repeated_lines(texts[number]))


def _special_tokens(texts: Sequence[str], special_tokens: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    expression = re.compile("|".join(map(re.escape, special_tokens))) if special_tokens else None
    for number, text in enumerate(texts):
        if expression is not None and expression.search(text):
            yield number, "special_tokens", next(token for token in special_tokens if token in text)


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


def _equal_blocks(data: Bytes) -> NDArray[np.int64]:
    """Return the begins of aligned blocks of equal eighths, one of which is in every run of twice a block's size."""
    size = _RUN_CHARACTERS // 2
    blocks = _blocks(data, size).view(np.uint64)
    return np.flatnonzero((blocks == blocks[:, :1]).all(axis=1)) * size


def _encoded_blocks(data: Bytes) -> NDArray[np.int64]:
    """Likewise for the characters of `_UNBROKEN`."""
    size = _UNBROKEN_CHARACTERS // 2
    return np.flatnonzero(_blocks(_ENCODED[data], size).all(axis=1)) * size


class Scripts:
    """Counts of letters by the first word of their Unicode names (LATIN, CYRILLIC, CJK, ...)."""

    _MOST = 12  # named in the report; the others are OTHER

    def __init__(self) -> None:
        self._points: Counter[int] = Counter()
        self._ascii = 0

    @classmethod
    def of(cls, batch: TextBatch) -> "Scripts":
        """Return the counts of texts."""
        made = cls()
        made._ascii = int(batch.counts[:, _ASCII_LETTERS].sum())
        others = "".join(batch.texts[number] for number in batch.non_ascii)
        points = np.frombuffer(others.encode("utf-32-le"), dtype="<u4")
        values, counts = np.unique(points[points >= 128], return_counts=True)
        made._points.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        return made

    def add(self, other: "Scripts") -> None:
        """Add the counts of other texts."""
        self._ascii += other._ascii
        self._points.update(other._points)

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
