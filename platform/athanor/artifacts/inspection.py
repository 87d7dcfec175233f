"""Detect what a file of training data holds, from a sample of it: its first bytes, and of parquet its last."""

import codecs
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import PurePosixPath
from typing import Any

from athanor.core.errors import Invalid
from trainer.contract.chat import TOOLS_FIELD, conversation_problem
from trainer.contract.data import PREFERENCE_FORMATS
from trainer.contract.labels import MESSAGES_FIELD, is_labelled_answer, labelled_answer_problem

SAMPLE_BYTES = 512 * 1024
PARQUET_MAGIC = b"PAR1"
SUFFIXES = {"text": (".txt",), "jsonl": (".jsonl", ".ndjson"), "parquet": (".parquet", ".pq")}
JSON_LINES = ("jsonl", "chat", *PREFERENCE_FORMATS)
"""Formats of files of JSON lines."""
FORMATS = ("text", *JSON_LINES, "parquet")

USUAL_TEXT_FIELDS = ("text", "content", "document", "body")
MAX_FIELDS = 50
MAX_NAME_CHARACTERS = 100
MAX_PREVIEW_CHARACTERS = 2000  # of one text
MAX_PREVIEW_ITEMS = 20  # of one list, such as the messages of a conversation

OTHER_CHAT_FORM = (
    "The messages have the fields 'from' and 'value'. Training reads 'role' (system, user, assistant) and 'content': "
    "rename them and upload the file again."
)
PREFERENCE = (
    "These are preference pairs. A job trains on them with training.preference and training.data.format preference; "
    "without, training reads one text of each line, from the field that you choose."
)
UNPAIRED = (
    "These are answers with a label. A job trains on them with training.preference, loss kto, and training.data.format "
    "unpaired; without, training reads conversations, or one text of each line, from the field that you choose."
)


@dataclass(frozen=True)
class Inspection:
    """What a sample of a file shows.

    `fields`: those that hold text, of the first JSON line or parquet schema; None if not known. `text_field`: the one
    to train on, or the one with the messages of a conversation; empty if there is none or the user has to choose.
    `rows`: the first ones, with long texts cut; lines of plain text. `documents`: the number of rows, where parquet
    says it. `note`: what the user should know before training on the file.
    """

    format: str
    fields: tuple[str, ...] | None = None
    text_field: str = ""
    rows: list[Any] = field(default_factory=list)
    documents: int | None = None
    note: str = ""


def format_of(name: str) -> str:
    """Return the format by the file's extension; text for unknown extensions."""
    return next((form for form, endings in SUFFIXES.items() if name.lower().endswith(endings)), "text")


def inspect(name: str, sample: bytes, form: str = "auto", *, rows: int = 10) -> Inspection:
    """Inspect a sample of up to SAMPLE_BYTES: the beginning of the file `name`, or the end of a parquet file.

    `form` is one of FORMATS, or `auto` to detect it. Raises Invalid for a sample that does not have the format, and for
    a JSON document that is not one object in each line.
    """
    if form == "parquet" or (form == "auto" and _is_parquet(name, sample)):
        return inspect_footer(name, sample) or Inspection("parquet")
    if form == "text" or (form == "auto" and not _is_json_lines(name, sample)):
        return Inspection("text", rows=_text_rows(name, sample, rows))
    found = list(_json_rows(name, sample, rows))
    if not found:
        return Inspection("jsonl" if form == "auto" else form)
    first = found[0]
    texts = _names(key for key, value in first.items() if isinstance(value, str))
    shown = [shortened(row) for row in found]
    if form == "unpaired" or (form == "auto" and is_labelled_answer(first)):
        problem = labelled_answer_problem(first)
        if problem:
            raise _refused(name, f"line 1 {problem}", "correct or remove the line, or choose another format")
        return Inspection("unpaired", texts, "", shown, note=UNPAIRED)
    messages = messages_field(first)
    # With `messages` too, as in data sets for both kinds of training, it is read as conversations unless chosen.
    is_pair = {"chosen", "rejected"} <= first.keys() and messages != MESSAGES_FIELD
    if form == "preference" or (form == "auto" and is_pair):
        return Inspection("preference", texts, "", shown, note=PREFERENCE)
    if messages and form in ("auto", "chat"):
        return Inspection("chat", texts, messages, shown)
    if form == "chat":
        raise _refused(name, f"line 1 {_no_conversation(first)}", "write one conversation a line, or choose jsonl")
    note = OTHER_CHAT_FORM if any(_is_other_chat(value) for value in first.values()) else ""
    return Inspection("jsonl", texts, usual_text_field(texts), shown, note=note)


def messages_field(record: dict[str, Any]) -> str:
    """Return the field with the messages of a conversation, each with a role and a content; empty if there is none."""
    names = sorted(_names(record), key=lambda name: name != MESSAGES_FIELD)
    return next((name for name in names if not conversation_problem(record[name], record.get(TOOLS_FIELD))), "")


def usual_text_field(fields: tuple[str, ...]) -> str:
    """Return the field that usually has the text, or the only one; empty if the user has to choose."""
    if len(fields) == 1:
        return fields[0]
    return next((name for name in USUAL_TEXT_FIELDS if name in fields), "")


def inspect_footer(name: str, tail: bytes) -> Inspection | None:
    """Inspect the end of a parquet file; None if its metadata begin before `tail`. Raises Invalid if they are damaged.

    The metadata are before the last eight bytes, which are their length and the magic number (parquet-format, "File
    format").
    """
    import pyarrow  # noqa: PLC0415 - half a second and 40 MB, for one kind of file
    import pyarrow.parquet  # noqa: PLC0415 - see above

    length = int.from_bytes(tail[-8:-4], "little")
    if tail[-4:] != PARQUET_MAGIC:
        raise _refused(name, "does not end as a parquet file does", "upload the complete file")
    if length + 8 > len(tail):
        return None
    try:
        # With the magic number before them the metadata alone are a parquet file without rows that can be read.
        metadata = pyarrow.parquet.read_metadata(io.BytesIO(PARQUET_MAGIC + tail[-length - 8 :]))
        schema = metadata.schema.to_arrow_schema()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise _refused(name, f"is no readable parquet file: {detail}", "write it again and upload it") from error
    is_text = (pyarrow.types.is_string, pyarrow.types.is_large_string)
    texts = _names(column.name for column in schema if any(check(column.type) for check in is_text))
    return Inspection("parquet", texts, usual_text_field(texts), documents=metadata.num_rows)


def shortened(value: Any) -> Any:
    """Return a value for a preview: long texts and lists cut, what JSON does not have as text."""
    if isinstance(value, str):
        # JSON can have half of a surrogate pair, which UTF-8 does not.
        cut = value[:MAX_PREVIEW_CHARACTERS].encode(errors="replace").decode()
        return cut if len(cut) == len(value) else f"{cut}…"
    if isinstance(value, dict):
        return {shortened(str(name)): shortened(item) for name, item in list(value.items())[:MAX_FIELDS]}
    if isinstance(value, list):
        return [shortened(item) for item in value[:MAX_PREVIEW_ITEMS]]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, (bool, int, float)) else shortened(str(value))


def parse_line(name: str, number: int, line: bytes) -> dict[str, Any]:
    """Return the object of a JSON line. Raises Invalid, which names the line, for anything else."""
    try:
        record = json.loads(line.decode())
    except RecursionError as error:
        raise _refused(name, f"line {number} is nested too deeply", "remove the line") from error
    except ValueError as error:
        raise _refused(name, f"line {number} is not JSON: {error}", "write one JSON object in each line") from error
    if not isinstance(record, dict):
        raise _refused(name, f"line {number} is not a JSON object", 'write lines like {"text": "..."}')
    return record


def _names(found: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a spec can write in `text_field`."""
    return tuple(name for name in found if 0 < len(name) <= MAX_NAME_CHARACTERS and name.isprintable())[:MAX_FIELDS]


def _is_parquet(name: str, sample: bytes) -> bool:
    return format_of(name) == "parquet" or sample[:4] == PARQUET_MAGIC


def _is_json_lines(name: str, sample: bytes) -> bool:
    """Return whether the file is of JSON lines: by its extension, and for `.json` by its first line.

    Raises Invalid for a `.json` file that is one document over several lines.
    """
    if PurePosixPath(name).suffix.lower() != ".json":
        return format_of(name) == "jsonl"
    first = sample.strip().split(b"\n", 1)[0]
    try:
        is_object = isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise _refused(
            name,
            "is one JSON document, and training reads one object in each line",
            "convert a list with: jq -c '.[]' data.json > data.jsonl",
        )
    return True


def _json_rows(name: str, sample: bytes, limit: int) -> Iterator[dict[str, Any]]:
    lines = sample.split(b"\n")
    if len(sample) >= SAMPLE_BYTES:
        lines = lines[:-1]  # the sample may end within it
    count = 0
    for number, line in enumerate(lines, start=1):
        if line.strip() and count < limit:
            yield parse_line(name, number, line)
            count += 1


def _text_rows(name: str, sample: bytes, limit: int) -> list[str]:
    # A character that the end of the sample cuts is left out.
    try:
        lines = codecs.getincrementaldecoder("utf-8")().decode(sample).splitlines()
    except UnicodeDecodeError as error:
        raise not_utf8(name, error.start) from error
    return [shortened(line) for line in lines if line.strip()][:limit]


def not_utf8(name: str, position: int) -> Invalid:
    """Return the error of a text with a byte, at this position, that is not UTF-8."""
    return _refused(name, f"byte {position} is not UTF-8", "convert it, for example: iconv -t UTF-8")


def _is_other_chat(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict) and {"from", "value"} <= value[0].keys()
    )


def _no_conversation(record: dict[str, Any]) -> str:
    if MESSAGES_FIELD in record:
        problem = conversation_problem(record[MESSAGES_FIELD], record.get(TOOLS_FIELD))
        return f"is no conversation: {MESSAGES_FIELD} {problem}"
    return f"has no list of messages with a role and a content (its fields: {', '.join(list(record)[:8])})"


def _refused(name: str, what: str, remedy: str) -> Invalid:
    return Invalid("invalid_dataset", f"{name}: {what}", remedy=remedy)
