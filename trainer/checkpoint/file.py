"""The file of a rank in a checkpoint: its state as a safetensors file, written as a stream and read in parts.

Its metadata entry `layout` is JSON, name -> [offsets, whole shape]. A tensor without dimensions (a step counter) is the
same on every rank. Older files give the first row alone for the offsets.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint.state import Shard
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import StoredFile
from trainer.storage.base import Storage
from trainer.storage.encrypted import decrypt_parts, read_ranges

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
READS_IN_FLIGHT = 2
"""Parts of a file that are fetched and decrypted while another part is copied."""
_SIZE_BYTES = 8  # of the header's size, at the beginning of a file


@dataclass(frozen=True)
class Entry:
    """A tensor in a rank's file: the box of `sizes` at `offsets` of a tensor of shape `shape`, row by row.

    `begin`: of its bytes in the file.
    """

    stored: str
    dtype: torch.dtype
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]
    begin: int

    @property
    def end(self) -> int:
        """Return the place in the file after its last byte."""
        return self.begin + prod(self.sizes) * int(self.dtype.itemsize)

    def needed(self, shards: Iterable[Shard]) -> "Entry | None":
        """Return the part of it, in whole rows, that has all that the shards need; None if they need nothing.

        An entry of another shape than a shard's is needed whole: its reader reports it.
        """
        low, high = None, 0
        for shard in shards:
            if shard.shape != self.shape or not self.shape:
                return self
            bounds = [
                (max(mine, theirs), min(mine + length, theirs + size))
                for mine, length, theirs, size in zip(
                    shard.offsets, shard.tensor.shape, self.offsets, self.sizes, strict=True
                )
            ]
            if all(first < end for first, end in bounds):
                low, high = min(bounds[0][0], bounds[0][0] if low is None else low), max(high, bounds[0][1])
        if low is None:
            return None
        row = (self.end - self.begin) // self.sizes[0]
        return replace(
            self,
            offsets=(low, *self.offsets[1:]),
            sizes=(high - low, *self.sizes[1:]),
            begin=self.begin + (low - self.offsets[0]) * row,
        )


class EncodedFile:
    """A rank's shards and own tensors as a safetensors file, with the layout in its metadata; its bytes are not joined.

    Format: the size of the header (8 bytes, little endian), the header as JSON, and the tensors as the header orders
    them (https://huggingface.co/docs/safetensors). `size`: of the file, in bytes. `entries`: its tensors, in order.
    """

    def __init__(self, shards: Mapping[str, Shard], own: Mapping[str, Tensor]) -> None:
        layout = {name: [list(shard.offsets), list(shard.shape)] for name, shard in shards.items()}
        tensors = {name: shard.tensor for name, shard in shards.items()} | dict(own)
        # The largest elements first: each tensor is then aligned to its own.
        self._tensors = dict(sorted(tensors.items(), key=lambda each: -each[1].element_size()))
        header: dict[str, Any] = {"__metadata__": {"layout": json.dumps(layout)}}
        end = 0
        for name, tensor in self._tensors.items():
            begin, end = end, end + tensor.nbytes
            header[name] = {
                "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end],
            }  # fmt: skip
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(_SIZE_BYTES, "little") + text
        self.size = len(self._header) + end
        self.entries = entries_of(self._header)

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes of the file. A tensor on a device is copied when its turn comes."""
        yield memoryview(self._header)
        for tensor in self._tensors.values():
            on_host = tensor.detach().to("cpu").contiguous()
            yield memoryview(on_host.reshape(-1).view(torch.uint8).numpy())


def entries_of(beginning: bytes) -> list[Entry]:
    """Return the tensors of a file in order, by its beginning, which has the header."""
    first = _SIZE_BYTES + int.from_bytes(beginning[:_SIZE_BYTES], "little")
    header = json.loads(beginning[_SIZE_BYTES:first])
    layout = json.loads(header.pop("__metadata__")["layout"])
    entries = []
    for name, each in header.items():
        sizes = tuple(each["shape"])
        offsets, shape = layout.get(name, [[0] * len(sizes), sizes])
        if isinstance(offsets, int):
            offsets = [offsets, *[0] * len(shape)][: len(shape)]
        begin = first + each["data_offsets"][0]
        entries.append(Entry(name, DTYPES[each["dtype"]], tuple(offsets), sizes, tuple(shape), begin))
    return sorted(entries, key=lambda entry: entry.begin)


def stored_entries(storage: Storage, encryptor: Encryptor, file: StoredFile) -> list[Entry]:
    """Return the tensors of a stored file, from its first part. Raises DecryptionError, StorageError."""
    return entries_of(next(decrypt_parts(storage, encryptor, file)))


def read_entries(storage: Storage, encryptor: Encryptor, file: StoredFile, entries: Iterable[Entry]) -> Iterator[Shard]:
    """Yield the tensors of these entries, which are in the file's order; reads only the parts of the file that have
    them. Raises DecryptionError, StorageError."""
    entries = list(entries)
    ranges = [(entry.begin, entry.end) for entry in entries]
    for entry, content in zip(entries, read_ranges(storage, encryptor, file, ranges, READS_IN_FLIGHT), strict=True):
        tensor = torch.empty(entry.sizes, dtype=entry.dtype)
        if content:
            tensor.view(-1).view(torch.uint8).copy_(torch.frombuffer(content, dtype=torch.uint8))
        yield Shard(tensor, entry.offsets, entry.shape, entry.stored)
