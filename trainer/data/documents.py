"""Read documents from objects of text, JSONL or parquet, as a stream. Errors name the object and the place in it."""

import codecs
import json
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.data import MixturePart
from trainer.contract.run import EndClass
from trainer.data.parquet import parquet_texts
from trainer.errors import TrainerError

BUILTIN_TEXT_BYTES = 6_000_000
"""Maximum size of the builtin corpus: training its tokenizer and tokenising it takes about 3 s on two cores."""

TEXT_PIECE_CHARACTERS = 16_384  # plain text is cut into documents of this size, at line ends
_READ_BYTES = 1024 * 1024
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class RawObject:
    """An object of a data set. `name`: as errors name it. `read`: yields its bytes, from the beginning at each call."""

    name: str
    read: Callable[[], Iterator[bytes]]

    @classmethod
    def of(cls, name: str, content: bytes) -> "RawObject":
        """Return an object with this content."""
        return cls(name, lambda: iter([content]))

    @classmethod
    def file(cls, path: Path) -> "RawObject":
        """Return the object of a file; reading it raises TrainerError (DATA_ERROR) if that fails."""
        return cls(path.name, lambda: _read_file(path))


class Piece(str):
    """A part of a plain text file; `begins_file` is set on the first one."""

    begins_file: bool


def data_error(message: str) -> TrainerError:
    """Return the error of a run whose data cannot be used."""
    return TrainerError(EndClass.DATA_ERROR, message)


def builtin_stdlib(root: Path | None = None) -> Iterator[RawObject]:
    """Yield the Python standard library's modules in sorted order, without its tests, up to BUILTIN_TEXT_BYTES.

    A few modules hold other encodings on purpose; they are left out. Yields the same on each machine with the
    same Python.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    total = 0
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED_FOLDERS.intersection(path.relative_to(root).parts):
            continue
        content = path.read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError:
            continue
        if total + len(content) > BUILTIN_TEXT_BYTES:
            return
        total += len(content)
        yield RawObject.of(str(path.relative_to(root)), content)


def read_documents(objects: Iterable[RawObject], part: MixturePart) -> Iterator[str]:
    """Yield the documents in order, without empty ones; those of a plain text file are Pieces.

    Raises TrainerError (DATA_ERROR) that names object and place.
    """
    for raw in objects:
        form = part.format if part.format != "auto" else _detect_format(raw.name)
        if form == "jsonl":
            yield from _jsonl_documents(raw, part.text_field)
        elif form == "parquet":
            yield from _parquet_documents(raw, part.text_field)
        elif part.source.startswith("builtin:"):
            yield from filter(str.strip, ["".join(_decode(raw))])
        else:
            for number, text in enumerate(_text_pieces(_decode(raw))):
                piece = Piece(text)
                piece.begins_file = number == 0
                yield piece


def _detect_format(name: str) -> str:
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    return "parquet" if name.endswith((".parquet", ".pq")) else "text"


def _read_file(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(_READ_BYTES):
                yield block
    except OSError as error:
        raise data_error(f"{path}: {error.strerror}; check the path and its permissions") from error


def _decode(raw: RawObject) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    seen = 0
    for block in (*raw.read(), b""):
        begin = seen - len(decoder.getstate()[0])
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _not_utf8(raw.name, error, begin) from error
        seen += len(block)


def _not_utf8(name: str, error: UnicodeDecodeError, begin: int) -> TrainerError:
    return data_error(
        f"{name} is not UTF-8: byte {error.object[error.start]:#04x} at offset {begin + error.start}; "
        "convert it (for example with `iconv -t utf-8`) and upload it again"
    )


def _text_pieces(blocks: Iterable[str]) -> Iterator[str]:
    rest = ""
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start > TEXT_PIECE_CHARACTERS:
            line_end = rest.rfind("\n", start, start + TEXT_PIECE_CHARACTERS)
            end = line_end + 1 if line_end > start else start + TEXT_PIECE_CHARACTERS
            if rest[start:end].strip():
                yield rest[start:end]
            start = end
        rest = rest[start:]
    if rest.strip():
        yield rest


def _lines(raw: RawObject) -> Iterator[str]:
    """Lines end in \\n alone: str.splitlines would also cut at U+2028, which JSON strings may hold."""
    rest, begin = b"", 0
    for block in (*raw.read(), None):
        *whole, rest = [*(rest + block).split(b"\n")] if block is not None else [rest, b""]
        for line in whole:
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(raw.name, error, begin) from error
            begin += len(line) + 1


def json_lines(raw: RawObject) -> Iterator[tuple[str, Any]]:
    """Yield (place, record) of each line that is not blank. Raises TrainerError (DATA_ERROR) that names the place."""
    for number, line in enumerate(_lines(raw), start=1):
        if not line.strip():
            continue
        place = f"{raw.name} line {number}"
        try:
            yield place, json.loads(line)
        except json.JSONDecodeError as error:
            raise data_error(
                f"{place} is not JSON: {error.msg} at column {error.colno}; fix or remove the line"
            ) from error


def _jsonl_documents(raw: RawObject, text_field: str) -> Iterator[str]:
    for place, record in json_lines(raw):
        if not isinstance(record, dict) or text_field not in record:
            names = ", ".join(sorted(record)[:8]) if isinstance(record, dict) else f"a {type(record).__name__}"
            raise data_error(f"{place} has no field {text_field!r} (it has: {names}); set training.data.text_field")
        text = record[text_field]
        if not isinstance(text, str):
            raise data_error(f"{place}: field {text_field!r} is a {type(text).__name__}; it must be a string")
        if text.strip():
            yield text


def _parquet_documents(raw: RawObject, text_field: str) -> Iterator[str]:
    try:
        yield from filter(str.strip, parquet_texts(raw.read(), text_field))
    except ValueError as error:
        raise data_error(f"{raw.name} {error}") from error
