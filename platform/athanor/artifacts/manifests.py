"""Authentic manifests: tagged when they are registered, verified whenever they are read.

A tag is made with the data key of the job, so somebody who can change rows but has no keys can neither change a
manifest nor use that of another job. The row names the attempt, generation and step, so an older manifest of the same
job in its place is refused too. Not covered: somebody with write access to the rows can remove the newest row, mark it
as retired, or change attempts' numbers; an older checkpoint is then the newest, as if the later ones had not been
registered. An agent that has already resumed from a newer one in the same attempt refuses it.
"""

from typing import Any

from athanor.artifacts import keys
from athanor.artifacts.models import Artifact, Checkpoint, DataReport, Dataset, PreparedDataset
from athanor.core.errors import Conflict, Invalid
from athanor.jobs.models import Attempt, Job
from trainer.contract.encryption import AnyManifest, DecryptionError, Encryptor, authenticate, check_manifest
from trainer.contract.manifest import (
    CheckpointManifest,
    DataReportManifest,
    DatasetManifest,
    LogManifest,
    Manifest,
    ModelManifest,
    ProfileManifest,
    StoredFile,
    UploadManifest,
)

# By an artifact's kind: its manifest, and the field that has the row's step.
OF_ARTIFACTS: dict[str, tuple[type[Manifest], str]] = {
    Artifact.Kind.MODEL.value: (ModelManifest, "step"),
    Artifact.Kind.LOG.value: (LogManifest, "step"),
    Artifact.Kind.PROFILE.value: (ProfileManifest, "last_step"),
}


def encryptor_of(job: Job) -> Encryptor:
    """Return the cipher of the job's data key."""
    return keys.encryptor(job.id, job.team)


def of_checkpoint(row: Checkpoint) -> CheckpointManifest:
    """Return a checkpoint's manifest. Raise Conflict unless it is the one that was registered as this row."""
    return _of_row(row, CheckpointManifest, None, step=row.step, generation=row.generation)


def of_stored(row: Checkpoint | Artifact, encryptor: Encryptor | None = None) -> Manifest:
    """Return the manifest of a checkpoint or artifact. Raise Conflict as `of_checkpoint` does.

    `encryptor` is the cipher of the row, if the caller has it already.
    """
    if isinstance(row, Checkpoint):
        return _of_row(row, CheckpointManifest, encryptor, step=row.step, generation=row.generation)
    kind, step = OF_ARTIFACTS[row.kind]
    return _of_row(row, kind, encryptor, **{step: row.step})


def of_preparation(row: PreparedDataset) -> DatasetManifest:
    """Return the manifest of a prepared data set. Raise Conflict as `of_checkpoint` does."""
    try:
        manifest = DatasetManifest.model_validate(row.manifest)
        check_manifest(manifest, keys.encryptor(row.dataset_id, row.dataset.team), recipe=row.recipe)
    except ValueError as error:
        raise _not_authentic(f"prepared data of {row.dataset_id}", error) from error
    return manifest


def of_report(row: DataReport) -> DataReportManifest:
    """Return the manifest of a data report. Raise Conflict as `of_checkpoint` does."""
    try:
        manifest = DataReportManifest.model_validate(row.manifest)
        expected = {"job_id": row.job_id, "attempt_id": row.attempt_id, "dataset_id": row.dataset_id}
        encryptor = keys.encryptor(row.dataset_id, row.dataset.team)
        check_manifest(manifest, encryptor, **expected, digest=row.digest)
    except ValueError as error:
        raise _not_authentic(row.pk, error) from error
    return manifest


def of_upload(row: Dataset) -> list[StoredFile]:
    """Return the files of an uploaded data set. Raise Conflict as `of_checkpoint` does."""
    try:
        files = [StoredFile.model_validate(file) for file in row.files]
        check_manifest(UploadManifest(dataset_id=row.id, files=files, tag=row.tag), keys.encryptor(row.id, row.team))
    except ValueError as error:
        raise _not_authentic(row.id, error) from error
    return files


def by_attempt(attempt: Attempt, manifest: AnyManifest, encryptor: Encryptor | None = None) -> AnyManifest:
    """Return the manifest that an attempt registers, with its tag. Raise Invalid if it is not this attempt's.

    `encryptor`: of the key that authenticates it; None: that of the job.

    A trainer of an earlier version sends none; the platform creates it, since the attempt has authenticated by its
    token.
    """
    own = {"job_id": attempt.job_id, "attempt_id": attempt.id}
    for name, value in own.items():
        found = getattr(manifest, name)
        if found != value and (found or manifest.tag):
            raise Invalid(
                "manifest_of_another",
                f"the manifest's {name} is {found!r}, but {value!r} registers it",
                remedy="register a manifest with the token of the attempt that wrote its files",
            )
    own_manifest = manifest if manifest.tag else manifest.model_copy(update=own)
    return tagged(own_manifest, encryptor or encryptor_of(attempt.job))


def tagged(manifest: AnyManifest, encryptor: Encryptor) -> AnyManifest:
    """Return the manifest with its verified tag, or with a new tag if it has none. Raise Invalid for a wrong tag."""
    if not manifest.tag:
        return authenticate(manifest, encryptor)
    try:
        check_manifest(manifest, encryptor)
    except DecryptionError as error:
        raise Invalid(
            "manifest_not_authentic",
            str(error),
            remedy="make the tag with the data key of GET /keys, after the last change of the manifest",
        ) from error
    return manifest


def _of_row(
    row: Checkpoint | Artifact, kind: type[AnyManifest], encryptor: Encryptor | None, **expected: Any
) -> AnyManifest:
    try:
        manifest = kind.model_validate(row.manifest)
        check_manifest(
            manifest,
            encryptor or keys.encryptor_of(row),
            job_id=row.job_id or "",  # an imported model has neither, and a key of its own
            attempt_id=row.attempt_id or "",
            **expected,
        )
    except ValueError as error:
        raise _not_authentic(row.pk, error) from error
    return manifest


def _not_authentic(what: str, error: Exception) -> Conflict:
    return Conflict(
        "manifest_not_authentic",
        f"the manifest of {what} is not the one that was registered: {error}",
        remedy="nothing of it was handed out; an administrator can restore its row from a backup of the database",
    )
