"""Where a worker group begins: from shadow checkpoints, its own or those on other nodes, from the stored checkpoint
that it was given, or from the start."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isclose, isfinite

from trainer.checkpoint.copy_layout import Progress
from trainer.checkpoint.reader import load
from trainer.checkpoint.shadow import ShadowCheckpoints
from trainer.checkpoint.state import Shard
from trainer.contract.encryption import DecryptionError, Encryptor, check_manifest
from trainer.contract.manifest import CheckpointManifest
from trainer.contract.run import EndClass, RunConfig
from trainer.errors import TrainerError
from trainer.parallel.weights import Weights
from trainer.reporting.reporter import Reporter
from trainer.storage.base import MissingObject, Storage

_SAME_LOSS = 0.01
"""Relative difference of the losses of a step that was taken twice, on GPUs whose sums depend on timing; elsewhere they
are equal."""


@dataclass(frozen=True)
class Resumed:
    """The steps done before this worker group, and what was known then. `is_restored`: whether there was a state to
    continue from. `is_save_lost`: a stored checkpoint that had begun by then was not finished."""

    step: int = 0
    is_restored: bool = True
    progress: Progress = field(default_factory=Progress)
    is_from_shadow: bool = False
    is_save_lost: bool = False
    next_loss: float | None = None

    def check_first_loss(self, loss: float) -> None:
        """Raise TrainerError (CHECKPOINT_DAMAGED) if the first loss after a shadow checkpoint shows that it is damaged:
        it is not finite, or not what the processes before have computed for this step."""
        if not self.is_from_shadow:
            return
        is_right = isfinite(loss) if self.next_loss is None else isclose(loss, self.next_loss, rel_tol=_SAME_LOSS)
        if is_right or (self.next_loss is not None and not isfinite(self.next_loss)):
            return
        before = "" if self.next_loss is None else f", and was {self.next_loss:.6g} before the restart"
        raise TrainerError(
            EndClass.CHECKPOINT_DAMAGED,
            f"the shadow checkpoint of step {self.step} is damaged: the loss of the next step is {loss:.6g}{before}",
        )


def resume(
    run: RunConfig,
    shadows: ShadowCheckpoints,
    shards: Sequence[Shard],
    weights: Weights,
    storage: Storage,
    encryptor: Encryptor,
    dataset_fingerprint: str,
    reporter: Reporter,
) -> Resumed:
    """Restore the newest state that is complete; a collective. Raises TrainerError, as `load` does, also for a stored
    checkpoint that cannot be read (CHECKPOINT_DAMAGED)."""
    stored = run.resume
    restored = shadows.restore(stored)
    if restored is not None:
        reporter.resume_after(restored.step)
        newest = stored.step if stored is not None else -1
        is_save_lost = restored.progress.last_saved > newest
        return Resumed(
            restored.step, progress=restored.progress, is_from_shadow=True, is_save_lost=is_save_lost,
            next_loss=restored.next_loss,
        )  # fmt: skip
    if stored is None:
        return Resumed(is_restored=False)
    begin = time.monotonic()
    with reporter.phase("load", heartbeat_phase="load"):
        check_manifest(stored, encryptor, job_id=run.job_id)
        with names_damage(stored):
            load(stored, shards, weights, storage, encryptor, dataset_fingerprint)
        weights.sync_compute_copies()
    reporter.event("checkpoint.restored", step=stored.step, tier="stored", seconds=time.monotonic() - begin, ranks="")
    return resumed_from(stored)


@contextmanager
def names_damage(stored: CheckpointManifest) -> Iterator[None]:
    """Raise TrainerError (CHECKPOINT_DAMAGED) for a part of a stored checkpoint that is damaged or missing."""
    try:
        yield
    except (DecryptionError, MissingObject) as error:
        raise TrainerError(
            EndClass.CHECKPOINT_DAMAGED, f"the checkpoint of step {stored.step} is damaged: {error}"
        ) from error


def resumed_from(stored: CheckpointManifest) -> Resumed:
    """Return what was known when a checkpoint was stored."""
    progress = Progress.model_validate_json(stored.progress) if stored.progress else Progress()
    known = {"last_saved": stored.step, "metrics": stored.metrics}
    return Resumed(stored.data_position, progress=progress.model_copy(update=known))
