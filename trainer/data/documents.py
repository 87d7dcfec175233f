"""Read documents from objects of text, JSONL or parquet, as a stream. Errors name the object and the place in it."""

import codecs
import json
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from trainer.contract.data import MixturePart
from trainer.contract.run import EndClass
from trainer.data.parquet import UnreadableRows, parquet_texts
from trainer.errors import TrainerError

BUILTIN_TEXT_BYTES = 6_000_000
"""Maximum size of the builtin corpus: training its tokenizer and tokenising it takes about 3 s on two cores."""

TEXT_PIECE_CHARACTERS = 16_384  # plain text is cut into documents of this size, at line ends
LONE_SURROGATE = "has half of a surrogate pair (\\ud800 to \\udfff), which is no text; remove it"
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


class Place(NamedTuple):
    """Where a document begins: the name of its object, and its line or row in it, from 1."""

    object: str
    row: int


class Document(str):
    """The text of a document. `place`: where it comes from."""

    place: Place

    @classmethod
    def at(cls, text: str, name: str, row: int) -> Self:
        """Return the text of a row of the object `name`."""
        made = cls(text)
        made.place = Place(name, row)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how pickle makes the document again, of whichever class it is."""
        return _restore, (type(self), str(self), self.__dict__)


def _restore(kind: type[Document], text: str, attributes: dict[str, Any]) -> Document:
    made = str.__new__(kind, text)
    made.__dict__.update(attributes)
    return made


class Piece(Document):
    """A part of a plain text file; `begins_file` is set on the first one."""

    begins_file: bool


@dataclass(frozen=True)
class RowProblem:
    """Why a row is no document. `kind`: one of those of `trainer.contract.data_findings`. `message`: names the place,
    what is wrong and what to do. `is_refused`: training ends with the message; otherwise it leaves the row out."""

    kind: str
    place: Place
    message: str
    is_refused: bool = True


class Reading:
    """How rows are read: invalid ones are refused, as training does. The data report has another one, which collects
    them. `max_row_bytes`: longer lines are a problem; they are not read into memory."""

    max_row_bytes: int | None = None

    def on_problem(self, problem: RowProblem) -> None:
        """Raise TrainerError (DATA_ERROR) for a row that is refused. If this returns, the row is left out."""
        if problem.is_refused:
            raise data_error(problem.message)

    def on_document(self, document: Document) -> None:
        """Look at a document before it is yielded."""

    def on_conversation(self, place: Place, messages: list[dict[str, Any]]) -> None:
        """Look at the messages of a valid conversation."""


STRICT = Reading()


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


def read_documents(objects: Iterable[RawObject], part: MixturePart, reading: Reading = STRICT) -> Iterator[Document]:
    """Yield the documents in order, without empty ones; those of a plain text file are Pieces.

    Raises TrainerError (DATA_ERROR) that names object and place, unless `reading` does not.
    """
    for raw in objects:
        form = part.format if part.format != "auto" else _detect_format(raw.name)
        if form == "jsonl":
            yield from _jsonl_documents(raw, part.text_field, reading)
        elif form == "parquet":
            yield from _parquet_documents(raw, part.text_field, reading)
        elif part.source.startswith("builtin:"):
            yield from _without_empty([(1, "".join(_decode(raw, reading)))], raw.name, reading)
        else:
            for number, (line, text) in enumerate(_text_pieces(_decode(raw, reading))):
                piece = Piece.at(text, raw.name, line)
                piece.begins_file = number == 0
                reading.on_document(piece)
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


def _decode(raw: RawObject, reading: Reading) -> Iterator[str]:
    """Yield the text of an object, up to the first byte that is not UTF-8 if `reading` does not refuse it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    seen, line = 0, 1
    for block in (*raw.read(), b""):
        begin = seen - len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            reading.on_problem(_not_utf8(Place(raw.name, line), error, begin))
            return
        yield text
        line += text.count("\n")
        seen += len(block)


def _not_utf8(place: Place, error: UnicodeDecodeError, begin: int) -> RowProblem:
    return RowProblem(
        "not_utf8",
        place,
        f"{place.object} is not UTF-8: byte {error.object[error.start]:#04x} at offset {begin + error.start}; "
        "convert it (for example with `iconv -t utf-8`) and upload it again",
    )


def _text_pieces(blocks: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each piece that is not blank."""
    rest, line = "", 1
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start > TEXT_PIECE_CHARACTERS:
            line_end = rest.rfind("\n", start, start + TEXT_PIECE_CHARACTERS)
            end = line_end + 1 if line_end > start else start + TEXT_PIECE_CHARACTERS
            if rest[start:end].strip():
                yield line, rest[start:end]
            line += rest.count("\n", start, end)
            start = end
        rest = rest[start:]
    if rest.strip():
        yield line, rest


def _lines(raw: RawObject, reading: Reading) -> Iterator[tuple[int, str]]:
    """Yield (number, line). Lines end in \\n alone: str.splitlines would also cut at U+2028, which JSON strings may
    hold."""
    begin = 0
    for number, (size, line) in enumerate(_byte_lines(raw, reading.max_row_bytes), start=1):
        place = Place(raw.name, number)
        if line is None:
            reading.on_problem(_too_long(place, size, reading.max_row_bytes))
        else:
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                reading.on_problem(_not_utf8(place, error, begin))
        begin += size + 1


def _byte_lines(raw: RawObject, limit: int | None) -> Iterator[tuple[int, bytes | None]]:
    """Yield (length, line) of each line; None for one that is longer than `limit`."""
    parts: list[bytes] = []
    size = 0

    def finish(last: bytes) -> tuple[int, bytes | None]:
        nonlocal parts, size
        parts.append(last)
        line = None if limit is not None and size + len(last) > limit else b"".join(parts)
        found = size + len(last), line
        parts, size = [], 0
        return found

    for block in raw.read():
        first, *others = block.split(b"\n")
        if others:
            yield finish(first)
            for line in others[:-1]:
                yield finish(line)
            first = others[-1]
        size += len(first)
        if limit is None or size <= limit:
            parts.append(first)
        else:
            parts = []
    yield finish(b"")


def _too_long(place: Place, size: int, limit: int | None) -> RowProblem:
    return RowProblem(
        "row_too_long",
        place,
        f"{place.object} line {place.row} has {size:,} bytes, more than {limit:,}; training would hold all of it in "
        "memory: divide it into several documents, one a line",
    )


def json_lines(raw: RawObject, reading: Reading = STRICT) -> Iterator[tuple[Place, Any]]:
    """Yield (place, record) of each line that is not blank. Raises TrainerError (DATA_ERROR) that names the place."""
    for number, line in _lines(raw, reading):
        if not line.strip():
            continue
        place = Place(raw.name, number)
        try:
            yield place, json.loads(line)
        except json.JSONDecodeError as error:
            message = f"is not JSON: {error.msg} at column {error.colno}; fix or remove the line"
            reading.on_problem(row_problem("not_json", place, message, separator=" "))
        except RecursionError:
            message = "is nested too deeply; fix or remove the line"
            reading.on_problem(row_problem("not_json", place, message, separator=" "))


def row_problem(kind: str, place: Place, message: str, *, separator: str = ": ") -> RowProblem:
    """Return the problem of a line that is refused."""
    return RowProblem(kind, place, f"{place.object} line {place.row}{separator}{message}")


def _without_empty(texts: Iterable[tuple[int, str]], name: str, reading: Reading) -> Iterator[Document]:
    """Yield the documents of (row, text). Those without text are a problem that is not refused."""
    for row, text in texts:
        if text.strip():
            document = Document.at(text, name, row)
            reading.on_document(document)
            yield document
        else:
            message = f"{name} row {row} has no text; training leaves it out"
            reading.on_problem(RowProblem("empty_text", Place(name, row), message, is_refused=False))


def _jsonl_documents(raw: RawObject, text_field: str, reading: Reading) -> Iterator[Document]:
    def texts() -> Iterator[tuple[int, str]]:
        for place, record in json_lines(raw, reading):
            problem = _field_problem(place, record, text_field)
            if problem is None:
                yield place.row, record[text_field]
            else:
                reading.on_problem(problem)

    yield from _without_empty(texts(), raw.name, reading)


def _field_problem(place: Place, record: Any, text_field: str) -> RowProblem | None:
    if not isinstance(record, dict) or text_field not in record:
        kind = "no_text_field" if isinstance(record, dict) else "not_an_object"
        message = f"has no field {text_field!r} (it has: {names_of(record)}); set training.data.text_field"
        return row_problem(kind, place, message, separator=" ")
    text = record[text_field]
    if not isinstance(text, str):
        message = f"field {text_field!r} is a {type(text).__name__}; it must be a string"
        return row_problem("text_not_string", place, message)
    if has_lone_surrogate(text):
        return row_problem("lone_surrogate", place, f"field {text_field!r} {LONE_SURROGATE}")
    return None


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, which JSON can have and UTF-8 does not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def names_of(record: Any) -> str:
    """Return the names of the first fields of a record, or its type, for an error."""
    return ", ".join(sorted(record)[:8]) if isinstance(record, dict) else f"a {type(record).__name__}"


def _parquet_documents(raw: RawObject, text_field: str, reading: Reading) -> Iterator[Document]:
    try:
        yield from _without_empty(parquet_texts(raw.read(), text_field), raw.name, reading)
    except UnreadableRows as error:
        reading.on_problem(RowProblem(error.kind, Place(raw.name, error.row), f"{raw.name} {error}"))
