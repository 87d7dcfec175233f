"""The index of a checkpoint: where each rank's file has which box of which tensor.

The files of many ranks differ only in the offsets of their boxes. What they share is stored once, and of each rank the
offsets, both compressed: 2 GB of JSON for 10,000 ranks of a model with 405 billion parameters become a few MB.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from safetensors.numpy import load, save

from trainer.checkpoint.file import DTYPES, Entry
from trainer.checkpoint.state import Shard
from trainer.contract.base import WireModel

INDEX_NAME = "index"
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class FileIndex(WireModel):
    """The entries of a rank's file, but for what it shares with other ranks. `shared`: digest of that; `own`: base64.

    Shared are, in the order of the file, name, type, shape of the box and whole shape of each tensor (JSON). Own are
    the place of the first tensor in the file and the offsets of all (64-bit integers). Both are compressed by zlib.
    """

    shared: str
    own: str


def describe(entries: Sequence[Entry]) -> tuple[FileIndex, bytes]:
    """Return the index of one file, and what it shares."""
    rows = [[entry.stored, _NAMES[entry.dtype], entry.sizes, entry.shape] for entry in entries]
    shared = zlib.compress(json.dumps(rows).encode())
    numbers = [entries[0].begin if entries else 0, *(offset for entry in entries for offset in entry.offsets)]
    own = zlib.compress(np.array(numbers, dtype="<i8").tobytes())
    return FileIndex(shared=hashlib.sha256(shared).hexdigest(), own=base64.b64encode(own).decode()), shared


def encode(files: Sequence[FileIndex], shared: Mapping[str, bytes]) -> bytes:
    """Return the index of all files, in order, as a safetensors file. `shared`: what files share, by digest."""
    numbers = {digest: number for number, digest in enumerate(shared)}
    owns = [base64.b64decode(each.own) for each in files]
    tensors = {"which": np.array([numbers[each.shared] for each in files], dtype=np.int32)}
    for name, pieces in (("shared", list(shared.values())), ("own", owns)):
        tensors[name] = np.frombuffer(b"".join(pieces), dtype=np.uint8)
        tensors[f"{name}_ends"] = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    content: bytes = save(tensors)
    return content


@dataclass(frozen=True)
class _Shared:
    """What files share: of each entry (name, type, sizes of its box, whole shape). `dimensions`: the most of any, at
    least 1."""

    rows: list[tuple[str, str, list[int], list[int]]]

    @cached_property
    def dimensions(self) -> int:
        return max((len(sizes) for _, _, sizes, _ in self.rows), default=0) or 1

    @cached_property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for each offset of a file its row and dimension."""
        rows = [number for number, (_, _, sizes, _) in enumerate(self.rows) for _ in sizes]
        dimensions = [dimension for _, _, sizes, _ in self.rows for dimension in range(len(sizes))]
        return np.array(rows, dtype=np.int64), np.array(dimensions, dtype=np.int64)


class Index:
    """A stored index."""

    def __init__(self, content: bytes) -> None:
        tensors = load(content)
        self._which = tensors["which"]
        self._own = _pieces(tensors["own"], tensors["own_ends"])
        self._shared = [
            _Shared(json.loads(zlib.decompress(piece))) for piece in _pieces(tensors["shared"], tensors["shared_ends"])
        ]

    def entries(self, number: int) -> list[Entry]:
        """Return the entries of file `number`, in its order."""
        numbers = self._numbers(number).tolist()
        begin, offsets = numbers[0], iter(numbers[1:])
        found = []
        for name, dtype, sizes, shape in self._shared[self._which[number]].rows:
            box = tuple(next(offsets) for _ in sizes)
            found.append(Entry(name, DTYPES[dtype], box, tuple(sizes), tuple(shape), begin))
            begin = found[-1].end
        return found

    def files_for(self, shards: Iterable[Shard]) -> list[int]:
        """Return the numbers of the files that have something of these shards, in order; of tensors without dimensions,
        which many files have, at least one."""
        named: dict[str, list[Shard]] = {}
        for shard in shards:
            named.setdefault(shard.stored, []).append(shard)
        wanted = {number: _bounds(shared, named) for number, shared in enumerate(self._shared)}
        found = [number for number in range(len(self._which)) if self._overlaps(number, *wanted[self._which[number]])]
        scalars = {name for name, those in named.items() if not those[0].shape}
        for number in [*found, *range(len(self._which))]:
            if not scalars:
                break
            names = {name for name, _, _, _ in self._shared[self._which[number]].rows}
            if names & scalars:
                scalars -= names
                found.append(number)
        return sorted(set(found))

    def _numbers(self, number: int) -> np.ndarray:
        return np.frombuffer(zlib.decompress(self._own[number]), dtype="<i8")

    def _overlaps(self, number: int, lows: np.ndarray, highs: np.ndarray, sizes: np.ndarray) -> bool:
        shared = self._shared[self._which[number]]
        offsets = np.zeros((len(shared.rows), shared.dimensions), dtype=np.int64)
        offsets[shared.places] = self._numbers(number)[1:]
        return bool(((np.maximum(lows, offsets) < np.minimum(highs, offsets + sizes)).all(axis=1)).any())


def _bounds(shared: _Shared, named: Mapping[str, Sequence[Shard]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each row and dimension, the first index that the shards need, the one after the last, and the box's
    size. A row that none needs, or without dimensions, has an empty range; one of another shape than the shard's has
    all."""
    shape = (len(shared.rows), shared.dimensions)
    lows, highs, sizes = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.ones(shape, np.int64)
    for row, (name, _, box, whole) in enumerate(shared.rows):
        sizes[row, : len(box)] = box
        for shard in named.get(name, []) if box else []:
            if list(shard.shape) != whole:
                lows[row], highs[row] = 0, np.iinfo(np.int64).max
                break
            begins, ends = np.array(shard.offsets), np.array(shard.offsets) + np.array(shard.tensor.shape)
            known = highs[row].any()
            lows[row, : len(box)] = np.minimum(lows[row, : len(box)], begins) if known else begins
            highs[row, : len(box)] = np.maximum(highs[row, : len(box)], ends)
            highs[row, len(box) :] = 1
    return lows, highs, sizes


def _pieces(joined: np.ndarray, ends: np.ndarray) -> list[bytes]:
    return [joined[begin:end].tobytes() for begin, end in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
