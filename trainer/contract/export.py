"""Exports of stored checkpoints: which checkpoint of which job an attempt writes as a model."""

from trainer.contract.base import WireModel
from trainer.contract.manifest import CheckpointManifest


class CheckpointExport(WireModel):
    """The checkpoint that an attempt exports. `job_id`: of the job that saved it, under the key of which it is."""

    job_id: str
    checkpoint: CheckpointManifest
