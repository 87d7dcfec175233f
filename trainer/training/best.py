"""Return to the checkpoint with the lowest loss on held-out data, once training is over."""

from trainer.checkpoint.reader import load
from trainer.checkpoint.state import live_shards
from trainer.contract.encryption import DecryptionError, check_manifest
from trainer.contract.manifest import BEST_LOSS, CheckpointManifest
from trainer.contract.run import DamagedCheckpoint, EndClass
from trainer.errors import TrainerError
from trainer.storage.base import MissingObject
from trainer.training.build import FinalState, TrainState

_KEY = "manifest"


def restore_best(state: TrainState) -> None:
    """Load the best checkpoint, with `checkpoint.keep_best`; a collective.

    The last state stays if no evaluation in training was better than the one before it. A checkpoint that cannot be
    read is reported as damaged, so that the platform no longer names it, and raises TrainerError (STORAGE_ERROR).
    """
    assert state.final is not None, "training is over"
    if not state.assignment.run.checkpoint.keep_best:
        return
    state.writer.wait()
    manifest = _find_best(state)
    if manifest is None or manifest.step == state.final.step:
        return
    weights, reporter = state.model.weights, state.reporter
    with reporter.phase("best_checkpoint", heartbeat_phase="load"):
        try:
            check_manifest(manifest, state.encryptor, job_id=state.assignment.run.job_id)
            shards = live_shards(weights, state.optimizer)
            load(manifest, shards, weights, state.storage, state.encryptor, manifest.dataset_fingerprint)
        except (DecryptionError, MissingObject, TrainerError) as error:
            if isinstance(error, TrainerError) and error.end_class is not EndClass.CHECKPOINT_DAMAGED:
                raise
            # Not CHECKPOINT_DAMAGED: the agent would report the one that it resumed from.
            state.platform.report_damaged(DamagedCheckpoint(**manifest.id.model_dump(), because=str(error)[:2000]))
            raise TrainerError(
                EndClass.STORAGE_ERROR,
                f"the checkpoint of step {manifest.step}, which has the lowest held-out loss, is damaged: {error}; "
                "on the platform, a restart exports the best of the others; standalone, run again without "
                "checkpoint.keep_best",
            ) from error
    weights.sync_compute_copies()
    state.final = FinalState(manifest.step, manifest.metrics)
    reporter.event("export.best", step=manifest.step, loss=manifest.metrics[BEST_LOSS])


def _find_best(state: TrainState) -> CheckpointManifest | None:
    """Return the manifest that the platform names; the first rank asks for all."""
    store = state.mesh.open_store("best/")
    if state.mesh.rank == 0:
        best = state.platform.run().best
        store.set(_KEY, best.model_dump_json() if best is not None else "")
    found = store.get(_KEY)
    return CheckpointManifest.model_validate_json(found) if found else None
