"""Export a stored checkpoint of another job, as the end of its training exports a model."""

from collections.abc import Sequence
from dataclasses import replace

from trainer.checkpoint.reader import load
from trainer.checkpoint.shadow import ShadowCheckpoints
from trainer.checkpoint.state import Shard
from trainer.contract.encryption import DecryptionError, Encryptor, check_manifest
from trainer.contract.run import EndClass, RunConfig
from trainer.contract.timeouts import EXPORT_TIMEOUT
from trainer.errors import TrainerError
from trainer.parallel.mesh import Mesh
from trainer.parallel.weights import Weights
from trainer.reporting.reporter import Reporter
from trainer.resilience.assignment import Assignment, HttpConnection
from trainer.storage.base import Storage
from trainer.training.build import FinalState, build
from trainer.training.export import export_model
from trainer.training.resume import Resumed, names_damage, resumed_from


def run_export_job(assignment: Assignment, mesh: Mesh, reporter: Reporter) -> EndClass:
    """Load the checkpoint and export its model under the key of this job; a collective. Return COMPLETED.

    Raise TrainerError (CHECKPOINT_DAMAGED) for a checkpoint that cannot be read, and as `load` does.
    """
    export = assignment.run.export
    assert export is not None, "of an export"
    connection = assignment.connection
    if isinstance(connection, HttpConnection):  # reads what is stored, not copies on this node
        connection = replace(connection, checkpoint_cache=None)
    run = assignment.run.model_copy(update={"resume": export.checkpoint})  # of the base, only frozen weights are read
    assignment = replace(assignment, connection=connection, run=run)
    restorer = Restorer(assignment.replayed_key)
    state = build(assignment, mesh, reporter, restorer.restore, trains=False)
    try:
        state.final = FinalState(export.checkpoint.step, export.checkpoint.metrics)
        reporter.enter_phase("export")
        state.mesh.set_timeout(EXPORT_TIMEOUT)
        export_model(state)
    finally:
        state.loader.close()
    return EndClass.COMPLETED


class Restorer:
    """Loads the checkpoint to export with the key of the job that saved it."""

    def __init__(self, key: str) -> None:
        self._encryptor = Encryptor(key)

    def restore(
        self,
        run: RunConfig,
        shadows: ShadowCheckpoints,
        shards: Sequence[Shard],
        weights: Weights,
        storage: Storage,
        encryptor: Encryptor,
        dataset_fingerprint: str,
        reporter: Reporter,
    ) -> Resumed:
        """Load the checkpoint as a resume does; see `trainer.training.resume.resume`."""
        assert run.export is not None, "of an export"
        stored = run.export.checkpoint
        with reporter.phase("load", heartbeat_phase="load"):
            try:
                check_manifest(stored, self._encryptor, job_id=run.export.job_id)
            except DecryptionError as error:
                message = f"the record of the checkpoint of step {stored.step} is not authentic: {error}"
                raise TrainerError(EndClass.CHECKPOINT_DAMAGED, message) from error
            with names_damage(stored):
                load(stored, shards, weights, storage, self._encryptor, dataset_fingerprint)
            weights.sync_compute_copies()
        return resumed_from(stored)
