"""Load a checkpoint saved on this mesh or a different one.

Of each rank's file, only the parts are read that have something of this rank's shards; the index says which.
"""

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from trainer.checkpoint.file import Entry, read_entries, stored_entries
from trainer.checkpoint.index import INDEX_NAME, Index
from trainer.checkpoint.state import Shard, is_own, overlay, set_own_states
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import CheckpointManifest, StoredFile
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.parallel.weights import Weights
from trainer.storage.base import Storage
from trainer.storage.encrypted import get_decrypted

_OLD_INDEX_NAME = "layout"
"""The index of checkpoints of earlier versions, in another format. Without it their files are read by their headers."""


def load(
    manifest: CheckpointManifest,
    shards: Sequence[Shard],
    weights: Weights,
    storage: Storage,
    encryptor: Encryptor,
    dataset_fingerprint: str,
) -> None:
    """Copy the stored tensors into `shards` in place.

    On the same mesh also restore this rank's RNG state and gradient-compression state. Raises DecryptionError for a
    damaged part; StorageError if the store does not answer; TrainerError for a different dataset fingerprint
    (DATA_ERROR), another shape (BAD_SPEC) or missing tensors (CHECKPOINT_DAMAGED).
    """
    if manifest.dataset_fingerprint != dataset_fingerprint:
        raise TrainerError(
            EndClass.DATA_ERROR,
            f"the checkpoint of step {manifest.step} was trained on data with the fingerprint "
            f"{manifest.dataset_fingerprint[:12]}, but this run's data has {dataset_fingerprint[:12]}; "
            "resume with the same data, or submit a new job",
        )
    mesh = weights.mesh
    mine = mesh.rank if manifest.mesh == mesh.axes else None
    missing, own = read_into(shards, manifest.files, storage, encryptor, mine)
    if mine is not None:
        set_own_states(own, weights)
    absent = [shard.stored for shard in missing]
    if absent:
        raise TrainerError(
            EndClass.CHECKPOINT_DAMAGED,
            f"the checkpoint of step {manifest.step} is damaged: it does not contain {', '.join(absent[:3])}",
        )


def read_into(
    shards: Sequence[Shard],
    stored_files: Sequence[StoredFile],
    storage: Storage,
    encryptor: Encryptor,
    mine: int | None,
) -> tuple[list[Shard], dict[str, Tensor]]:
    """Copy the tensors of a checkpoint's files into `shards`. Return the shards of which something is missing, and the
    state that only one rank has, of file `mine`."""
    files = [file for file in stored_files if file.path not in (INDEX_NAME, _OLD_INDEX_NAME)]
    index_file = next((file for file in stored_files if file.path == INDEX_NAME), None)
    index = Index(get_decrypted(storage, encryptor, index_file)) if index_file is not None else None
    numbers = range(len(files)) if index is None else index.files_for(shards)

    def entries_in(number: int) -> list[Entry]:
        return stored_entries(storage, encryptor, files[number]) if index is None else index.entries(number)

    return overlay_files(
        shards,
        sorted({*numbers, mine}) if mine is not None else numbers,
        entries_in,
        lambda number, entries: read_entries(storage, encryptor, files[number], entries),
        mine,
    )


def overlay_files(
    shards: Sequence[Shard],
    numbers: Iterable[int],
    entries_in: Callable[[int], list[Entry]],
    read: Callable[[int, list[Entry]], Iterable[Shard]],
    mine: int | None,
) -> tuple[list[Shard], dict[str, Tensor]]:
    """Copy what files have of `shards` into them, in the order of `numbers`; of equal boxes only the first. Return as
    `read_into`.

    `entries_in`: the tensors of a file. `read`: reads some of them; it is called for files that something is needed of.
    """
    shards_by_name: dict[str, list[Shard]] = {}
    for shard in shards:
        shards_by_name.setdefault(shard.stored, []).append(shard)
    missing = {id(shard): shard.tensor.numel() for shard in shards}
    own: dict[str, Tensor] = {}
    boxes: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = set()
    for number in numbers:
        needed = []
        for entry in entries_in(number):
            box = entry.stored, entry.offsets, entry.sizes
            if is_own(entry.stored):
                part = entry if number == mine else None
            elif box in boxes:
                continue
            else:
                part = entry.needed([each for each in shards_by_name.get(entry.stored, []) if missing[id(each)]])
            if part is not None:
                boxes.add(box)
                needed.append(part)
        for stored in read(number, needed) if needed else ():
            if is_own(stored.stored):
                own[stored.stored] = stored.tensor
            for shard in shards_by_name.get(stored.stored, []):
                _check_shape(shard, stored)
                missing[id(shard)] -= overlay(shard, stored) if missing[id(shard)] else 0
    return [shard for shard in shards if missing[id(shard)]], own


def _check_shape(target: Shard, stored: Shard) -> None:
    if target.shape != stored.shape:
        raise TrainerError(
            EndClass.BAD_SPEC,
            f"the checkpoint's {stored.stored} has shape {list(stored.shape)}, this model's {list(target.shape)}; "
            "training.model and training.tokenizer must be those of the checkpoint",
        )
