"""Checks of a folder in Hugging Face's layout before it becomes a version of a model, by names and small files alone.

The command line checks a folder before it uploads anything, and the platform checks what arrives. Tensors are not read:
of a safetensors file only the header, which names them with their shapes and places.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from trainer.contract.hugging_face import (
    CONFIG_NAME,
    DESCRIBING_FILES,
    TOKENIZER_NAME,
    shape_of_config,
    text_config,
)
from trainer.contract.manifest import MANIFEST_NAME, is_file_name
from trainer.contract.model_signature import SIGNATURE_NAME

WEIGHTS, INDEX_NAME = ".safetensors", "model.safetensors.index.json"
MAX_FILES = 2_000
MAX_NAME = 255
MAX_HEADER_BYTES = 16 * 2**20  # of a safetensors file
MAX_TEXT_BYTES = 64 * 2**20  # of a file that is read as a whole: a configuration, tokenizer or index
HEADER_LENGTH = 8
READ_WHOLE = (*DESCRIBING_FILES, INDEX_NAME)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
_TEXTS = (".json", ".jinja", ".txt", ".md", ".model", ".tiktoken", ".pdf", ".png")
_WITHOUT_SUFFIX = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True)
class Header:
    """The tensors of a safetensors file: the number of elements of each, by name."""

    tensors: dict[str, int]


@dataclass(frozen=True)
class FolderFacts:
    """What the checks found. `not_trainable`: why no job can start from it, empty if one can."""

    num_parameters: int
    not_trainable: str


def check_name(name: str) -> None:
    """Raise ValueError, with the remedy, for a file that cannot be part of an imported model."""
    if not is_file_name(name) or len(name) > MAX_NAME or not all(each.isalnum() or each in "._- " for each in name):
        raise ValueError(
            f"{name!r} is no plain file name of letters, digits, dots, dashes, spaces and underscores; put the model's "
            "files beside each other in one folder, and rename this one"
        )
    if name in (SIGNATURE_NAME, MANIFEST_NAME):
        raise ValueError(f"{name} is a name that the platform gives to its own file; leave this one out")
    lower = name.lower()
    if lower.endswith(_PICKLES):
        raise ValueError(
            f"{name} may be a pickle, which runs code when it is loaded; save the model as safetensors: "
            "model.save_pretrained(DIR, safe_serialization=True), and leave this file out"
        )
    if not lower.endswith((WEIGHTS, *_TEXTS)) and name.upper() not in _WITHOUT_SUFFIX:
        raise ValueError(
            f"{name} is no file of a model in Hugging Face's layout ({', '.join((WEIGHTS, *_TEXTS))}); leave it out"
        )


def header_size(name: str, first_bytes: bytes) -> int:
    """Return how many bytes the header of a safetensors file has, from its first 8. Raise ValueError."""
    if len(first_bytes) < HEADER_LENGTH:
        raise ValueError(f"{name} is no safetensors file: it has {len(first_bytes)} bytes; copy it again")
    size: int = struct.unpack("<Q", first_bytes[:HEADER_LENGTH])[0]
    if not 2 <= size <= MAX_HEADER_BYTES:
        raise ValueError(
            f"{name} is no safetensors file: its header would have {size} bytes; save it again as safetensors"
        )
    return size


def read_header(name: str, content: bytes, file_size: int) -> Header:
    """Return the tensors of a safetensors file of `file_size` bytes, from its first bytes, which contain the header.

    Raise ValueError unless the tensors fill the file exactly.
    """
    size = header_size(name, content)
    if len(content) < HEADER_LENGTH + size:
        raise ValueError(f"{name} ends within its header; copy it again")
    try:
        entries = json.loads(content[HEADER_LENGTH : HEADER_LENGTH + size])
        if not isinstance(entries, dict):
            raise ValueError("the header is not an object")  # noqa: TRY004, TRY301 - caught below with those of json
        tensors, places = {}, []
        for tensor, entry in entries.items():
            if tensor == "__metadata__":
                continue
            tensors[tensor], place = _read_entry(tensor, entry)
            places.append(place)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is no safetensors file: {error}; save it again as safetensors") from error
    end = 0
    for start, stop in sorted(places):
        if start != end:
            raise ValueError(f"{name} is no safetensors file: no tensor begins at byte {end}; save it again")
        end = stop
    expected = HEADER_LENGTH + size + end
    if file_size != expected:
        raise ValueError(f"{name} has {file_size} bytes, and its header describes {expected}; copy it again")
    return Header(tensors)


def _read_entry(tensor: str, entry: Any) -> tuple[int, tuple[int, int]]:
    """Return the number of elements of a tensor, and where its bytes begin and end. Raise ValueError."""
    try:
        bits, shape, (start, stop) = _BITS[entry["dtype"]], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tensor {tensor!r} has no known dtype, shape and data_offsets") from error
    numbers = [*shape, start, stop] if isinstance(shape, list) else [None]
    if not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError(f"tensor {tensor!r} has a shape or offsets that are no numbers")
    elements = prod(shape)
    if (stop - start) * 8 != elements * bits:
        raise ValueError(f"tensor {tensor!r} has {stop - start} bytes, which is not the size of its shape")
    return elements, (start, stop)


def check_folder(names: Iterable[str], headers: Mapping[str, Header], texts: Mapping[str, bytes]) -> FolderFacts:
    """Return what a folder is, from its file names, the headers of its weights, and the files of READ_WHOLE in it.

    Raise ValueError for one that is no complete model: without a configuration or weights, or of which the index and
    the weights differ.
    """
    found = sorted(names)
    for name in found:
        check_name(name)
    folded: dict[str, str] = {}
    for name in found:
        if (other := folded.setdefault(name.casefold(), name)) != name:
            raise ValueError(f"{other} and {name} differ in upper and lower case alone; rename one")
    if len(found) > MAX_FILES:
        raise ValueError(f"the folder has {len(found)} files, more than {MAX_FILES}; leave those out that are no model")
    if CONFIG_NAME not in texts:
        raise ValueError(f"there is no {CONFIG_NAME}; give the folder of a model in Hugging Face's layout")
    config = _object(CONFIG_NAME, texts[CONFIG_NAME])
    if not headers:
        raise ValueError("there are no *.safetensors; save the model as safetensors: model.save_pretrained(DIR)")
    _check_index(headers, texts.get(INDEX_NAME))
    return FolderFacts(sum(sum(each.tensors.values()) for each in headers.values()), _not_trainable(config, texts))


def _check_index(headers: Mapping[str, Header], index: bytes | None) -> None:
    """Raise ValueError unless each tensor is in one file, and, with an index, in that which the index names."""
    where: dict[str, str] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            if tensor in where:
                raise ValueError(f"{tensor} is in {where[tensor]} and in {file}; leave one of the files out")
            where[tensor] = file
    if index is None:
        if len(headers) > 1:
            names = ", ".join(sorted(headers))
            raise ValueError(f"several files have weights ({names}), and there is no {INDEX_NAME}; copy it too")
        return
    mapped = _object(INDEX_NAME, index).get("weight_map")
    if not isinstance(mapped, dict):
        raise ValueError(f"{INDEX_NAME} has no weight_map; save the model again")  # noqa: TRY004 - of a file's content
    for tensor, file in mapped.items():
        if not isinstance(file, str) or file not in headers:
            raise ValueError(f"{INDEX_NAME} names {file!r} for {tensor}, which is missing; copy it too")
        if where.get(tensor) != file:
            raise ValueError(f"{INDEX_NAME} names {file} for {tensor}, which is not in that file; copy both again")
    for tensor, file in where.items():
        if tensor not in mapped:
            raise ValueError(f"{INDEX_NAME} does not name {tensor}, which {file} has; leave the file out")


def _not_trainable(config: dict[str, Any], texts: Mapping[str, bytes]) -> str:
    """Return why no job can start from the model, empty if one can as far as its small files show."""
    if TOKENIZER_NAME not in texts:
        return f"it has no {TOKENIZER_NAME}"
    try:
        shape_of_config(text_config(config))
    except (ValueError, KeyError, TypeError) as error:
        return str(error)
    return ""


def _object(name: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}; copy it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not a JSON object; copy it again")  # noqa: TRY004 - of a file's content
    return found
