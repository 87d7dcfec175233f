"""Smaller micro-batches after a rank has run out of memory.

The other ranks then wait in a collective that never ends, so the ranks cannot agree on a size: all are killed, and the
processes that are started next get the smaller size. The sums of gradients stay the same, since more micro-batches add
up to the same batch.

The size is stored under the job's prefix, for later attempts and the agents of other nodes; a checkpoint has it too.
"""

import hashlib

from trainer.contract.base import WireModel
from trainer.contract.encryption import Encryptor
from trainer.contract.launch_plan import micro_batch_size, plan_mesh, smaller_micro_batch
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import RunConfig
from trainer.storage.base import MissingObject, Storage

MICRO_BATCH_NAME = "attempts/micro-batch.json"

REMEDIES = (
    "use training.activation_checkpointing full, training.optimizer.offload, a larger training.parallelism.zero or "
    "tensor, more processes, or a shorter training.sequence_length"
)


class StoredMicroBatch(WireModel):
    """The stored size of micro-batches in sequences, for a run with this digest of `training` and this mesh."""

    training: str
    mesh: dict[str, int]
    micro_batch: int


def out_of_memory(message: str, micro_batch: int) -> str:
    """Return the final message of a run whose micro-batches cannot become smaller."""
    smaller = "" if micro_batch == 1 else "; remove training.parallelism.micro_batch_sequences, or make it smaller"
    return f"{message}; a micro-batch had {micro_batch} sequences{smaller}; {REMEDIES}"


def reduce_micro_batch(
    run: RunConfig, vocab_size: int, largest: int | None, chosen: int | None
) -> tuple[int, int | None]:
    """Return (sequences of the micro-batches that ran out of memory, of those to try next or None if there is no
    smaller size). `chosen`: the size that the workers reported; None if memory ran out before they had."""
    training, sizes = run.training, _sizes(run, vocab_size)
    assert training is not None and sizes is not None, "a run without a mesh takes no memory"
    tried = chosen or micro_batch_size(training, sizes, vocab_size, largest)
    return tried, smaller_micro_batch(training, sizes, vocab_size, tried)


def store_micro_batch(
    storage: Storage, encryptor: Encryptor, run: RunConfig, vocab_size: int, micro_batch: int
) -> None:
    """Store the size for later attempts. Raises StorageError."""
    sizes, key = _sizes(run, vocab_size), run.prefix + MICRO_BATCH_NAME
    assert sizes is not None, "a run without a mesh takes no memory"
    stored = StoredMicroBatch(training=_digest(run), mesh=sizes.axes, micro_batch=micro_batch)
    ciphertext, _ = encryptor.encrypt(stored.model_dump_json().encode(), key)
    storage.put(key, ciphertext)


def load_micro_batch(storage: Storage, encryptor: Encryptor, run: RunConfig, vocab_size: int) -> int | None:
    """Return the stored size for this run, else that of the checkpoint to resume from on the same mesh, else None.

    Raises StorageError, DecryptionError.
    """
    training, sizes, key = run.training, _sizes(run, vocab_size), run.prefix + MICRO_BATCH_NAME
    if training is None or sizes is None or training.parallelism.micro_batch_sequences != "auto":
        return None
    try:
        stored = StoredMicroBatch.model_validate_json(encryptor.decrypt_unlisted(storage.get(key), key))
    except MissingObject:
        stored = None
    if stored is not None and (stored.training, stored.mesh) == (_digest(run), sizes.axes):
        return stored.micro_batch
    return run.resume.micro_batch if run.resume is not None and run.resume.mesh == sizes.axes else None


def _sizes(run: RunConfig, vocab_size: int) -> MeshSizes | None:
    if run.training is None:
        return None
    sizes = plan_mesh(run.training, vocab_size, run.layout.world_size)
    return None if isinstance(sizes, list) else sizes


def _digest(run: RunConfig) -> str:
    assert run.training is not None
    return hashlib.sha256(run.training.model_dump_json().encode()).hexdigest()
