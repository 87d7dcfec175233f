"""Processes that prepare the units of a data set: one leads, and the others, on all nodes, take units one by one.

A worker takes the next unit that nobody has, so that a slow node takes fewer. The leader trains the tokenizer in
between, and writes what belongs to all units. Importable without torch, so that the agent can name these functions.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainer.contract.data import TokenizerSpec
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import StoredFile
from trainer.contract.run import EndClass, RunConfig
from trainer.data.prepare import Preparation, PreparationPlan, UnitCount, UnitTokens
from trainer.data.raw_objects import read_units
from trainer.data.shards import LENGTH_DTYPE, SPLITS, unit_documents_name
from trainer.data.tokenizer import ExistingTokenizer
from trainer.errors import TrainerError
from trainer.resilience.assignment import FolderConnection, HttpConnection
from trainer.resilience.failures import classify_exception
from trainer.resilience.store_server import STORE_TIMEOUT, StoreAddress
from trainer.storage.base import Storage
from trainer.storage.encrypted import encrypt_file

if TYPE_CHECKING:
    from trainer.data.shared_values import SharedValues


@dataclass(frozen=True)
class UnitsTask:
    """What each process needs to know. `number`: of the source in the run; `folder`: of this node, or of the process.

    `prefix`: of the keys of the shards in the store; empty: they stay in the folder, which all processes share.
    `helps`: the leader is on another node, which the platform watches.
    """

    connection: HttpConnection | FolderConnection
    run: RunConfig
    number: int
    recipe: str
    key: str = field(repr=False)
    tokenizer: TokenizerSpec | ExistingTokenizer
    local_files: list[Path]
    unit_bytes: int
    folder: Path
    store: StoreAddress
    prefix: str
    helps: bool


@dataclass(frozen=True)
class UnitResult:
    """A prepared unit. Where its shards were stored: their files, and the lengths of its documents by split."""

    tokens: UnitTokens
    files: list[StoredFile]
    lengths: dict[str, list[int]]


Report = tuple[EndClass, str] | list[StoredFile] | None
"""What a process reports to its agent: an error, the files of the shards that were stored (of the leader), or None
where it lost the store of the leader, which is on another node."""


def lead(task: UnitsTask, report: Connection) -> None:
    """Lead the preparation of a data set. Reports the stored files of all shards, if they were stored."""
    _run(task, report, _lead)


def take_units(task: UnitsTask, report: Connection) -> None:
    """Count and tokenise units until there are none. If the leader on another node is gone, this ends without an
    error."""
    _run(task, report, _take_units)


def _run(
    task: UnitsTask,
    report: Connection,
    work: Callable[[UnitsTask, Preparation, "SharedValues", Storage], list[StoredFile]],
) -> None:
    from torch.distributed import DistNetworkError, TCPStore  # noqa: PLC0415 - there in the fork server's children

    from trainer.data.shared_values import SharedValues  # noqa: PLC0415 - loads torch

    os.environ["RAYON_NUM_THREADS"] = "1"  # of the tokenizers library: each core has a process of its own
    result: Report = []
    values = None
    try:
        _, storage = task.connection.connect(task.run)
        part, source, encryptor = task.run.data.parts[task.number], task.run.datasets[task.number], Encryptor(task.key)
        units = read_units(part, source, storage, encryptor, task.local_files, task.unit_bytes)
        store = TCPStore(task.store.host, task.store.port, is_master=False, timeout=STORE_TIMEOUT)
        values = SharedValues(store, encryptor, task.recipe)
        result = work(task, Preparation(units, part, task.tokenizer, task.folder), values, storage)
    except Exception as error:  # noqa: BLE001 - reported to the agent, which ends the attempt with it
        if task.helps and isinstance(error, DistNetworkError):
            result = None
        else:
            failure = classify_exception(error, rank=-1)
            result = failure.end_class, failure.message
            if values is not None:
                with suppress(DistNetworkError):
                    values.fail(TrainerError(*result))
    report.send(result)


def _lead(task: UnitsTask, preparation: Preparation, values: "SharedValues", _: Storage) -> list[StoredFile]:
    counts = []
    for number in range(preparation.num_units):
        counts.append(values.get(f"count/{number}", UnitCount))
        values.discard(f"count/{number}")
    plan = preparation.plan(counts)
    values.set("prefix", task.prefix)
    values.set("plan", plan)
    units, files = [], []
    for number in range(preparation.num_units):
        result = values.get(f"unit/{number}", UnitResult)
        values.discard(f"unit/{number}")
        units.append(result.tokens)
        files += result.files
        for split, lengths in result.lengths.items():
            np.array(lengths, dtype=LENGTH_DTYPE).tofile(task.folder / unit_documents_name(split, number))
    preparation.finish(plan, units)
    return files


def _take_units(
    task: UnitsTask, preparation: Preparation, values: "SharedValues", storage: Storage
) -> list[StoredFile]:
    for number in values.take_numbers("next count", preparation.num_units):
        values.set(f"count/{number}", preparation.count(number))
    plan, prefix = values.get("plan", PreparationPlan), values.get("prefix", str)
    for number in values.take_numbers("next unit", preparation.num_units):
        tokens = preparation.tokenise(number, plan)
        result = _store(task, number, tokens, prefix, storage) if prefix else UnitResult(tokens, [], {})
        values.set(f"unit/{number}", result)
    return []


def _store(task: UnitsTask, number: int, tokens: UnitTokens, prefix: str, storage: Storage) -> UnitResult:
    """Store the shards of a unit, and delete its files."""
    encryptor, files, lengths = Encryptor(task.key), [], {}
    for split in SPLITS:
        for shard in tokens.shards[split]:
            path = task.folder / shard.name
            files.append(encrypt_file(storage, encryptor, prefix, shard.name, path))
            path.unlink()
        path = task.folder / unit_documents_name(split, number)
        lengths[split] = np.fromfile(path, LENGTH_DTYPE).tolist()
        path.unlink()
    return UnitResult(tokens, files, lengths)
