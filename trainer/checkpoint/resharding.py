"""Read this rank's part of the state from the copies that another number of ranks has made, which agents hold.

The copies of all ranks are read as the files of a stored checkpoint: by an index, which the first rank puts together
from their descriptions. Ranks that had the same box of a tensor have equal ones, of which one is read.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from pydantic import ConfigDict

from trainer.checkpoint.copy_layout import (
    CopyDescription,
    Progress,
    Unusable,
    join_indices,
    read_entries_of,
    size_of,
    view_of,
)
from trainer.checkpoint.file import Entry
from trainer.checkpoint.index import Index
from trainer.checkpoint.reader import overlay_files
from trainer.checkpoint.state import Shard
from trainer.contract.base import WireModel
from trainer.resilience.peer_link import PeerError, fetch
from trainer.resilience.replicas import CopyId
from trainer.resilience.shadow_memory import digest_of

Addresses = Mapping[int, tuple[str, int]]
Check = Callable[[CopyDescription], None]
"""Raises Unusable for a copy that a resume may not continue from."""
_REQUESTS_IN_FLIGHT = 16


class CopiedState(WireModel):
    """What is known of the copies of one state. `ranks`: that made them, in the order of `index`, which is in base64.
    `progress`: of the first one. `next_loss`: that of the step after it, if it is known. `unusable`: the ranks with an
    unusable copy, and why; then the rest is not complete."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    ranks: list[int] = []
    index: str = ""
    progress: Progress = Progress()
    next_loss: float | None = None
    unusable: dict[int, str] = {}

    def without_points(self) -> "CopiedState":
        """Return it without the metrics that only the first rank reports again."""
        return self.model_copy(update={"progress": self.progress.model_copy(update={"points": []})})


class UnusableCopy(Exception):
    """Why the copy of a rank is not used."""

    def __init__(self, rank: int, because: str) -> None:
        super().__init__(because)
        self.rank = rank


def describe_state(addresses: Addresses, secret: bytes, copy: CopyId, check: Check) -> CopiedState:
    """Return what the agents at these addresses know of the ranks' copies."""

    def describe_copy(rank: int) -> tuple[CopyDescription, float | None] | str:
        try:
            return _fetch(addresses[rank], secret, rank, copy, memoryview(bytearray()), check)
        except UnusableCopy as error:
            return str(error)

    ranks = sorted(addresses)
    with ThreadPoolExecutor(_REQUESTS_IN_FLIGHT, thread_name_prefix="describe") as pool:
        found = dict(zip(ranks, pool.map(describe_copy, ranks), strict=True))
    unusable = {rank: because for rank, because in found.items() if isinstance(because, str)}
    known = [each for each in found.values() if not isinstance(each, str)]
    if unusable:
        return CopiedState(unusable=unusable)
    return CopiedState(
        ranks=ranks,
        index=base64.b64encode(join_indices([described.index for described, _ in known])).decode(),
        progress=known[0][0].progress,
        next_loss=next((loss for _, loss in known if loss is not None), None),
    )


def read_state(
    state: CopiedState, addresses: Addresses, secret: bytes, copy: CopyId, targets: Sequence[Shard], check: Check,
    distance: Callable[[int], int],
) -> str:  # fmt: skip
    """Copy what the targets are of the state into them. Return what no copy has, empty if it is complete.

    `distance`: of a rank's copy; of equal ones the nearest is read. Each copy that is read is verified by its digest.
    Raises UnusableCopy.
    """
    index = Index(base64.b64decode(state.index))

    def read(number: int, entries: list[Entry]) -> Iterator[Shard]:
        rank = state.ranks[number]
        data = torch.empty(size_of(read_entries_of(index, number)), dtype=torch.uint8)
        content = memoryview(data.numpy())
        described, _ = _fetch(addresses[rank], secret, rank, copy, content, check)
        if digest_of(content) != described.digest:
            raise UnusableCopy(rank, "its content does not have its digest")
        for entry in entries:
            yield Shard(view_of(data, entry), entry.offsets, entry.shape, entry.stored)

    numbers = sorted(index.files_for(targets), key=lambda number: distance(state.ranks[number]))
    missing, _ = overlay_files(targets, numbers, lambda number: read_entries_of(index, number), read, None)
    return f"no node holds a copy that has {missing[0].stored}" if missing else ""


def _fetch(
    address: tuple[str, int], secret: bytes, rank: int, copy: CopyId, data: memoryview, check: Check
) -> tuple[CopyDescription, float | None]:
    try:
        text, next_loss = fetch(address, secret, rank, copy, data)
        described = CopyDescription.model_validate_json(text)
        check(described)
    except (PeerError, Unusable, ValueError) as error:
        raise UnusableCopy(rank, str(error)) from error
    except OSError as error:
        raise UnusableCopy(rank, f"it could not be fetched from {address[0]}: {error}") from error
    return described, next_loss
