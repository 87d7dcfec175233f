"""Load a checkpoint saved on this mesh or another one.

With a layout file, files without overlapping shards are skipped, except this rank's own.
"""

from collections.abc import Sequence

from trainer.checkpoint.state import OWN_PREFIX, RNG_PREFIX, Shard, decode, overlay, set_own_states
from trainer.checkpoint.writer import LAYOUT_NAME, Boxes
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.parallel.weights import Weights
from trainer.storage.base import Storage
from trainer.storage.encrypted import get_decrypted


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
    shards_by_name: dict[str, list[Shard]] = {}
    for shard in shards:
        shards_by_name.setdefault(shard.stored, []).append(shard)
    missing = {id(shard): shard.tensor.numel() for shard in shards}
    same_mesh = manifest.mesh == mesh.axes
    layout = [file for file in manifest.files if file.path == LAYOUT_NAME]
    files = [file for file in manifest.files if file.path != LAYOUT_NAME]
    boxes = Boxes.model_validate_json(get_decrypted(storage, encryptor, layout[0])) if layout else None
    for number, file in enumerate(files):
        is_mine = same_mesh and number == mesh.rank
        if boxes is not None and not is_mine and not _has_overlap(boxes.files[number], shards_by_name):
            continue
        own = {}
        for stored in decode(get_decrypted(storage, encryptor, file)):
            if stored.stored.startswith((RNG_PREFIX, OWN_PREFIX)):
                own[stored.stored] = stored.tensor
            for shard in shards_by_name.get(stored.stored, []):
                _check_shape(shard, stored)
                missing[id(shard)] -= overlay(shard, stored) if missing[id(shard)] else 0
        if is_mine:
            set_own_states(own, weights)
    absent = [shard.stored for shard in shards if missing[id(shard)]]
    if absent:
        raise TrainerError(
            EndClass.CHECKPOINT_DAMAGED,
            f"the checkpoint of step {manifest.step} is damaged: it does not contain {', '.join(absent[:3])}",
        )


def _has_overlap(boxes: dict[str, list[list[int]]], shards_by_name: dict[str, list[Shard]]) -> bool:
    """Return whether a file's boxes overlap with any shard."""
    for name, (offsets, sizes) in boxes.items():
        for shard in shards_by_name.get(name, []):
            overlaps = [
                max(mine, theirs) < min(mine + length, theirs + size)
                for mine, length, theirs, size in zip(shard.offsets, shard.tensor.shape, offsets, sizes, strict=False)
            ]
            if all(overlaps):
                return True
    return False


def _check_shape(target: Shard, stored: Shard) -> None:
    if target.shape != stored.shape:
        raise TrainerError(
            EndClass.BAD_SPEC,
            f"the checkpoint's {stored.stored} has shape {list(stored.shape)}, this model's {list(target.shape)}; "
            "training.model and training.tokenizer must be those of the checkpoint",
        )
