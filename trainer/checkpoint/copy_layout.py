"""What a copy of a rank's state in memory has, in which order, and its description, which is stored beside it."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from pydantic import ConfigDict
from torch import Tensor

from trainer.checkpoint.file import Entry
from trainer.checkpoint.index import FileIndex, Index, describe, encode
from trainer.checkpoint.state import Shard
from trainer.contract.base import WireModel
from trainer.contract.run import MetricPoint
from trainer.reporting.gradient_watch import GradientWatchState, OutlierState

_ALIGNMENT = 64  # bytes: of a tensor in a copy, and of its end


class Unusable(Exception):
    """Why a copy is not used."""


class Progress(WireModel):
    """What training knows beside its tensors. `last_saved`: step of the newest stored checkpoint that was begun, -1
    without one. `metrics`: the latest, for checkpoints. `skipped`: steps in a row in which it diverged, and all steps
    without an update. `watch`, `losses`: the limits of gradients and of losses. `points`: metrics that may not have
    left the process, or the node, if its copies are sent to another node."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    last_saved: int = -1
    metrics: dict[str, float] = {}
    skipped: tuple[int, int] = (0, 0)
    watch: GradientWatchState = GradientWatchState()
    losses: OutlierState = OutlierState()
    points: list[MetricPoint] = []


class CopyIndex(WireModel):
    """The tensors of a copy in order, as in the index of a stored checkpoint. `shared`: what ranks share, in base64."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    file: FileIndex
    shared: str

    @property
    def digest(self) -> str:
        """Return a digest of what a copy has in which order."""
        return hashlib.sha256(f"{self.file.shared} {self.file.own}".encode()).hexdigest()


class CopyDescription(WireModel):
    """The text in the header of a copy. `identity`: what must be equal for it to be used. `index`: its tensors, by
    which another number of ranks reads it. `restart_count`: of the worker group that made it. `digest`: that of its
    data."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    identity: dict[str, str | int | dict[str, int]]
    index: CopyIndex
    progress: Progress
    restart_count: int
    digest: int


def entries_of_state(shards: Iterable[Shard], own: Mapping[str, Tensor]) -> list[Entry]:
    """Return the tensors of a copy: those of the state in order, then the rank's own."""
    entries = [
        Entry(each.stored, each.tensor.dtype, each.offsets, tuple(each.tensor.shape), each.shape, 0) for each in shards
    ]
    for name, tensor in own.items():
        sizes = tuple(tensor.shape)
        entries.append(Entry(name, tensor.dtype, (0,) * len(sizes), sizes, sizes, 0))
    return _placed(entries)


def index_of(entries: Sequence[Entry]) -> CopyIndex:
    """Return the index of a copy."""
    file, shared = describe(entries)
    return CopyIndex(file=file, shared=base64.b64encode(shared).decode())


def join_indices(indices: Sequence[CopyIndex]) -> bytes:
    """Return the index of several copies, which `read_entries_of` reads, as that of a stored checkpoint."""
    shared = {each.file.shared: base64.b64decode(each.shared) for each in indices}
    return encode([each.file for each in indices], shared)


def read_entries_of(index: Index, number: int) -> list[Entry]:
    """Return the tensors of copy `number` of a joined index."""
    return _placed(index.entries(number))


def size_of(entries: Sequence[Entry]) -> int:
    """Return the bytes of a copy."""
    return _aligned(entries[-1].end) if entries else 0


def view_of(data: Tensor, entry: Entry) -> Tensor:
    """Return a tensor of a copy, or a part of it, sharing memory with the copy's bytes."""
    return data[entry.begin : entry.end].view(entry.dtype).view(entry.sizes)


def _placed(entries: Iterable[Entry]) -> list[Entry]:
    placed, end = [], 0
    for entry in entries:
        begin = _aligned(end)
        placed.append(replace(entry, begin=begin))
        end = begin + prod(entry.sizes) * int(entry.dtype.itemsize)
    return placed


def _aligned(place: int) -> int:
    return -(-place // _ALIGNMENT) * _ALIGNMENT
