"""Text in, documents out. Whatever cannot be read as it claims to be is refused with its place."""

import json
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.data import DataSpec
from trainer.contract.run import EndClass
from trainer.errors import TrainerError

BUILTIN_TEXT_BYTES = 6_000_000
"""Cap of the builtin corpus: with it, a tokenizer is trained and all is tokenised in about 3 s on two cores."""

TEXT_PIECE_CHARACTERS = 16_384  # plain text is cut into documents of this size, at line ends
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class RawObject:
    """One object of a data set as it was given: `name` is how errors speak of it."""

    name: str
    content: bytes


def data_error(message: str) -> TrainerError:
    return TrainerError(EndClass.DATA_ERROR, message)


def builtin_stdlib(root: Path | None = None) -> Iterator[RawObject]:
    """The Python standard library's modules in sorted order, without its tests, up to BUILTIN_TEXT_BYTES.

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
        yield RawObject(str(path.relative_to(root)), content)


def read_documents(objects: Iterable[RawObject], spec: DataSpec) -> Iterator[str]:
    """Documents in order, none empty. Raises TrainerError (DATA_ERROR) with object and place."""
    for raw in objects:
        is_lines = spec.format == "jsonl" or (spec.format == "auto" and raw.name.endswith((".jsonl", ".ndjson")))
        if is_lines:
            yield from _jsonl_documents(raw, spec.text_field)
        elif spec.source.startswith("builtin:"):
            yield from filter(str.strip, [_decode(raw)])
        else:
            yield from _text_pieces(_decode(raw))


def _decode(raw: RawObject) -> str:
    try:
        return raw.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise data_error(
            f"{raw.name} is not UTF-8: byte {error.object[error.start]:#04x} at offset {error.start}; "
            "convert it (for example with `iconv -t utf-8`) and upload it again"
        ) from error


def _text_pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = start + TEXT_PIECE_CHARACTERS
        if end < len(text):
            line_end = text.rfind("\n", start, end)
            end = line_end + 1 if line_end > start else end
        if text[start:end].strip():
            yield text[start:end]
        start = end


def _jsonl_documents(raw: RawObject, text_field: str) -> Iterator[str]:
    # Lines end in \n alone: str.splitlines would also cut at U+2028, which JSON strings may hold.
    for number, line in enumerate(_decode(raw).split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{raw.name} line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise data_error(f"{place} is not JSON: {error.msg} at column {error.colno}; mend or drop it") from error
        if not isinstance(record, dict) or text_field not in record:
            names = ", ".join(sorted(record)[:8]) if isinstance(record, dict) else f"a {type(record).__name__}"
            raise data_error(f"{place} has no field {text_field!r} (it has: {names}); set training.data.text_field")
        text = record[text_field]
        if not isinstance(text, str):
            raise data_error(f"{place}: field {text_field!r} is a {type(text).__name__}; it must be a string")
        if text.strip():
            yield text
