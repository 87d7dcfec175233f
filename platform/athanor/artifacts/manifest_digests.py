"""SHA-256 digests of stored things, as lineage shows them."""

import hashlib
from typing import Any

from pydantic import ValidationError

from athanor.artifacts.manifests import OF_ARTIFACTS
from athanor.artifacts.models import Artifact, Checkpoint, DataReport, Dataset, ModelVersion, PreparedDataset
from athanor.jobs.models import Job
from trainer.contract.manifest import CheckpointManifest, DatasetManifest, Manifest, StoredFile, UploadManifest


def digest_of(row: Any) -> str | None:
    """Return the digest on record: of a job the spec's, of a data report that of its content, else that of the
    manifest, as registered versions have it."""
    if isinstance(row, ModelVersion | DataReport):
        return row.digest
    if isinstance(row, Job):
        return row.spec_digest
    manifest = _manifest(row)
    return hashlib.sha256(manifest.authenticated_bytes()).hexdigest() if manifest else None


def _manifest(row: Any) -> Manifest | None:
    """Return the manifest of a row, not verified: downloads verify it. None if there is none, or none that is valid."""
    try:
        if isinstance(row, Artifact):
            return OF_ARTIFACTS[row.kind][0].model_validate(row.manifest)
        if isinstance(row, Checkpoint):
            return CheckpointManifest.model_validate(row.manifest)
        if isinstance(row, PreparedDataset):
            return DatasetManifest.model_validate(row.manifest)
        if isinstance(row, Dataset) and row.origin == Dataset.Origin.SEALED:
            return UploadManifest(dataset_id=row.id, files=[StoredFile.model_validate(file) for file in row.files])
    except ValidationError:
        return None
    return None
