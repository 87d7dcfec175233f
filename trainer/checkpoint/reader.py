"""Reads a checkpoint into live state, saved by this number of ranks or any other."""

from trainer.checkpoint.state import RNG_PREFIX, Shard, decode, overlay, set_rng_states
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.run import EndClass
from trainer.contract.sealing import Sealer
from trainer.errors import TrainerError
from trainer.parallel.mesh import Mesh
from trainer.storage.base import Storage
from trainer.storage.sealed import get_sealed


def load(
    manifest: CheckpointManifest,
    shards: dict[str, Shard],
    mesh: Mesh,
    storage: Storage,
    sealer: Sealer,
    fingerprint: str,
) -> None:
    """Fill `shards`, which share memory with the live state. Raises SealError for a damaged part, TrainerError else."""
    if manifest.dataset_fingerprint != fingerprint:
        raise TrainerError(
            EndClass.DATA_ERROR,
            f"the checkpoint of step {manifest.step} was trained on data {manifest.dataset_fingerprint[:12]}, this run "
            f"has {fingerprint[:12]}; its order would be another one: give the same data, or start a new job",
        )
    missing = {name: shard.tensor.numel() for name, shard in shards.items()}
    same_ranks = manifest.world_size == mesh.world_size
    files = [manifest.files[mesh.rank]] if same_ranks else manifest.files
    for file in files:
        rng = {}
        for name, stored in decode(get_sealed(storage, sealer, file)):
            if name.startswith(RNG_PREFIX):
                rng[name] = stored.tensor
            elif name in shards:
                _check_shape(name, shards[name], stored)
                missing[name] -= overlay(shards[name], stored) if missing[name] else 0
        if same_ranks:
            set_rng_states(rng, mesh.device)
    absent = [name for name, count in missing.items() if count]
    if absent:
        raise TrainerError(
            EndClass.STORAGE_ERROR, f"the checkpoint of step {manifest.step} lacks {', '.join(absent[:3])}"
        )


def _check_shape(name: str, target: Shard, stored: Shard) -> None:
    if target.shape != stored.shape:
        raise TrainerError(
            EndClass.BAD_SPEC,
            f"the checkpoint's {name} has shape {list(stored.shape)}, this model's {list(target.shape)}; "
            "training.model and training.tokenizer must be those of the checkpoint",
        )
