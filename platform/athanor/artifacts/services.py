"""Registration of what a run stored, retention of checkpoints, and access for downloads."""

import logging
from collections.abc import Iterator
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.artifacts import (
    buckets,
    checkpoint_uses,
    datasets,
    deletion_hold,
    grants,
    keys,
    manifests,
    preparations,
    storage,
)
from athanor.artifacts.checkpoint_retention import NEWEST_FIRST, retire_older
from athanor.artifacts.models import Artifact, Checkpoint, Dataset, PreparedDataset, of_teams
from athanor.core.errors import Conflict, Forbidden, Invalid, NotFound
from athanor.jobs import events
from athanor.jobs.models import Attempt, Job
from athanor.specs.v1 import base_of
from trainer.contract.manifest import (
    MANIFEST_NAME,
    CheckpointId,
    CheckpointManifest,
    DatasetManifest,
    Manifest,
    ModelManifest,
    StoredFile,
    StoredPart,
    find_best,
)
from trainer.contract.rollback import Rollback, RollbackRequest, RollbackSpec

log = logging.getLogger(__name__)

INTACT = Q(retired_at=None, damaged_at=None, diverged_at=None, deletion=None)  # what an attempt may resume from


def job_prefix(job_id: str) -> str:
    """Return the only prefix of the store that a job's attempts may write to."""
    return f"jobs/{job_id}/"


def register_checkpoint(attempt: Attempt, manifest: CheckpointManifest) -> Checkpoint:
    """Register a checkpoint. Idempotent. Retire older ones that the spec does not retain."""
    check_is_whole(attempt.job_id, manifest)
    manifest = manifests.by_attempt(attempt, manifest)
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        row, created = Checkpoint.objects.get_or_create(
            attempt=attempt,
            generation=manifest.generation,
            step=manifest.step,
            defaults={
                "job": job,
                "size_bytes": size_of_files(manifest.files),
                "manifest": manifest.model_dump(mode="json"),
                "metrics": manifest.metrics,
            },
        )
        if created:
            facts = {"checkpoint": row.id, "step": row.step, "bytes": row.size_bytes}
            events.append(job, "checkpoint.registered", actor=attempt.id, data=facts)
            job.save(update_fields=["event_seq", "updated_at"])
            retire_older(job)
    return row


def roll_back(attempt: Attempt, request: RollbackRequest) -> Rollback | None:
    """Return the attempt's job to an earlier checkpoint, because its loss diverged: nothing resumes from later ones.
    Return None if there is none to return to, or after `rollback.max_rollbacks`. Idempotent for each worker group: the
    agents of all its nodes ask.
    """
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        past = rollbacks_of(job)
        for known in past:
            if (known.attempt_id, known.generation) == (attempt.id, request.generation):
                return known
        training = job.resolved_spec["training"] or {}
        if len(past) >= RollbackSpec.model_validate(training.get("rollback", {})).max_rollbacks:
            return None
        newest_first = list(_intact_checkpoints(job).order_by(*NEWEST_FIRST))
        good = next((row for row in newest_first if row.step <= request.last_good_step), None)
        if good is None:
            return None
        left = newest_first[: newest_first.index(good)]
        Checkpoint.objects.filter(pk__in=[row.pk for row in left]).update(diverged_at=timezone.now())
        rollback = Rollback(
            attempt_id=attempt.id,
            generation=request.generation,
            from_step=good.step,
            first_sequence=request.first_sequence,
        )
        job.rollbacks = [*job.rollbacks, rollback.model_dump(mode="json")]
        job.save(update_fields=["rollbacks", "updated_at"])
    return rollback


def rollbacks_of(job: Job) -> list[Rollback]:
    """Return the rollbacks of all attempts of a job, oldest first."""
    return [Rollback.model_validate(each) for each in job.rollbacks]


def register_model(attempt: Attempt, manifest: ModelManifest) -> Artifact:
    """Register the model that an attempt exported. Idempotent."""
    check_is_whole(attempt.job_id, manifest)
    manifest = manifests.by_attempt(attempt, manifest)
    exported = attempt.job.resolved_spec.get("export")
    if exported and manifest.step != exported["step"]:
        detail = (
            f"the manifest's step is {manifest.step}; {attempt.job_id} exports the checkpoint of {exported['step']}"
        )
        raise Invalid("wrong_step", detail, remedy="export the checkpoint of GET /run")
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=attempt.job_id)
        row, created = Artifact.objects.get_or_create(
            attempt=attempt,
            kind=Artifact.Kind.MODEL,
            defaults={
                "job": job,
                "name": job.name,
                "step": manifest.step,
                "size_bytes": size_of_files(manifest.files),
                "manifest": manifest.model_dump(mode="json"),
                "metrics": manifest.metrics,
            },
        )
        if created:
            facts = {"artifact": row.id, "kind": row.kind, "bytes": row.size_bytes}
            events.append(job, "artifact.registered", actor=attempt.id, data=facts)
            job.save(update_fields=["event_seq", "updated_at"])
    return row


def register_dataset(attempt: Attempt, manifest: DatasetManifest, token: UUID | None = None) -> PreparedDataset:
    """Register a data set that an attempt tokenised. Idempotent. Raise Forbidden unless the job uses it.

    `token` is that of the attempt's claim: raise Conflict if another attempt has taken it over. A trainer of an earlier
    version has none.
    """
    check_is_whole(attempt.job_id, manifest)
    manifest = manifest.model_copy(update={"dataset_id": manifest.dataset_id or attempt.job.dataset_id})
    preparations.check_dataset(attempt, manifest.dataset_id)
    manifest = manifests.tagged(manifest, keys.encryptor(manifest.dataset_id, attempt.job.team))
    with preparations.finishing(manifest, token):
        row, _ = PreparedDataset.objects.get_or_create(
            dataset_id=manifest.dataset_id,
            recipe=manifest.recipe,
            forgotten_at__isnull=True,
            defaults={
                "manifest": manifest.model_dump(mode="json"),
                "size_bytes": size_of_files(manifest.files),
                "job_id": attempt.job_id,
            },
        )
    return row


def newest_checkpoint(job: Job) -> CheckpointManifest | None:
    """Return the manifest to resume from: the furthest of the newest attempt that saved any.

    None without one. Raise Conflict for a forged one, and when there are only damaged ones: training is not repeated
    from its first step unasked.
    """
    row = newest_checkpoint_row(job)
    if row is None and Checkpoint.objects.filter(job=job, damaged_at__isnull=False, retired_at=None).exists():
        raise Conflict(
            "no_intact_checkpoint",
            f"no checkpoint of {job.id} can be read: each is damaged or missing in the object store",
            remedy="have the object store checked; fork the job to train from the first step",
        )
    return manifests.of_checkpoint(row) if row else None


def best_checkpoint(job: Job) -> CheckpointManifest | None:
    """Return the manifest of the checkpoint with the lowest held-out loss; None without one, or if the job does not
    retain it. Raise Conflict for a forged one."""
    row = best_checkpoint_row(job)
    return manifests.of_checkpoint(row) if row else None


def best_checkpoint_row(job: Job) -> Checkpoint | None:
    """Return the row of the checkpoint that `best_checkpoint` names."""
    if not job.resolved_spec["checkpoint"].get("keep_best"):
        return None
    return find_best(_intact_checkpoints(job))


def _intact_checkpoints(job: Job) -> QuerySet[Checkpoint]:
    return Checkpoint.objects.filter(INTACT, job=job)


def newest_checkpoint_row(job: Job) -> Checkpoint | None:
    """Return the row of the checkpoint to resume from; None without one."""
    return _intact_checkpoints(job).order_by(*NEWEST_FIRST).first()


def checkpoint_manifest(checkpoint_id: str) -> CheckpointManifest | None:
    """Return the manifest of a checkpoint; None if it does not exist. Raise Conflict for a forged one."""
    row = Checkpoint.objects.filter(pk=checkpoint_id).first()
    return manifests.of_checkpoint(row) if row else None


def checkpoint_id(checkpoint_pk: str) -> CheckpointId | None:
    """Return what identifies a checkpoint to the trainer; None if it does not exist."""
    found = Checkpoint.objects.filter(pk=checkpoint_pk).values("attempt_id", "generation", "step").first()
    return CheckpointId(**found) if found else None


def checkpoint_of(attempt: Attempt, asked: CheckpointId) -> CheckpointManifest:
    """Return the manifest of a checkpoint of the attempt's job. Raise NotFound, Conflict for a forged one."""
    row = Checkpoint.objects.filter(job=attempt.job_id, **asked.model_dump()).first()
    if row is None:
        raise NotFound("checkpoint", f"step {asked.step} of {asked.attempt_id}")
    return manifests.of_checkpoint(row)


def retired_checkpoints() -> QuerySet[Checkpoint]:
    """Return the retired checkpoints whose objects are still stored."""
    rows = Checkpoint.objects.filter(retired_at__isnull=False, deleted_at__isnull=True)
    return rows.filter(job__team__deleted_at=None)


@deletion_hold.unless_held
def sweep_retired(limit: int = 50) -> int:
    """Delete the objects of retired checkpoints. Return how many checkpoints were deleted."""
    gone = 0
    for row in retired_checkpoints().select_related("job__team").order_by("retired_at")[:limit]:
        try:
            manifest = manifests.of_checkpoint(row)
        except Conflict:
            log.exception("the objects of %s stay in the store", row.pk)  # its manifest may name anybody's
            continue
        keys_of_parts = [part.key for file in manifest.files for part in file.parts]
        # The manifest goes first: what no manifest names does not exist.
        prefix = keys_of_parts[0].rpartition("/")[0]
        storage.delete([f"{prefix}/{MANIFEST_NAME}", *keys_of_parts])
        gone += Checkpoint.objects.filter(pk=row.pk, deleted_at__isnull=True).update(deleted_at=timezone.now())
    return gone


def check_may_write(attempt: Attempt, keys_asked: list[str]) -> None:
    """Raise Forbidden for keys outside the job's prefix."""
    prefix = job_prefix(attempt.job_id)
    for key in keys_asked:
        if not buckets.is_below_any(key, [prefix]):
            raise Forbidden("outside_prefix", f"{key!r} is not under {prefix}", remedy="write under your own prefix")


def check_may_read(attempt: Attempt, keys_asked: list[str]) -> None:
    """Raise Forbidden for keys that the attempt may not read, Invalid for a bucket that is no longer granted, and
    Conflict for a base model that is no longer shared.

    It may read its own job's objects, those of the data sets and the base model that the job names, and those of the
    checkpoints that it replays or exports.
    """
    prefix = job_prefix(attempt.job_id)
    foreign = [key for key in keys_asked if not buckets.is_below_any(key, [prefix])]
    if not foreign:
        return
    report = (attempt.job.resolved_spec.get("prepare") or {}).get("report") or {}
    rows = list(Dataset.objects.filter(pk__in=attempt.job.dataset_ids))
    rows += [datasets.resolve(attempt.job.team, source) for source in report.get("evaluation", ())]
    granted = {part["key"] for dataset in rows for file in dataset.files for part in file["parts"]}
    for prepared in PreparedDataset.objects.filter(dataset__in=rows):
        granted |= {part["key"] for file in prepared.manifest["files"] for part in file["parts"]}
    prefixes = [dataset.name for dataset in rows if dataset.origin == Dataset.Origin.PLAIN]
    base = base_of(attempt.job.resolved_spec)
    if base.startswith("s3://"):
        prefixes.append(base)
    elif base:
        identifier, team_id = base.removeprefix("model:"), attempt.job.team_id
        own = Artifact.objects.filter(of_teams([team_id]), pk=identifier).first()
        model = own or grants.artifact_for([team_id], identifier)
        if model is None:
            detail = (
                f"{base}, the base model of {attempt.job_id}, is no longer shared with team {attempt.job.team.name}"
            )
            remedy = "have the team that owns it share it again, or start from another model, then submit the job again"
            raise Conflict("base_not_found", detail, remedy=remedy)
        granted |= {part["key"] for file in model.manifest["files"] for part in file["parts"]}
    for row in checkpoint_uses.checkpoints_read_by(attempt.job).values():
        granted |= {part["key"] for file in row.manifest["files"] for part in file["parts"]}
    for key in foreign:
        if buckets.is_below_any(key, prefixes):
            datasets.check_bucket(attempt.job.team, key)
        elif key not in granted:
            raise Forbidden("outside_prefix", f"{key!r} is not this job's", remedy="read your own job's objects")


def opened_parts(row: Checkpoint | Artifact, path: str) -> Iterator[bytes]:
    """Yield the plaintext of one file part by part; each part is verified before it is yielded."""
    encryptor = keys.encryptor_of(row)
    for file in manifests.of_stored(row).files:
        if file.path == path:
            for part in file.parts:
                yield encryptor.decrypt(_fetched(part), part)
            return
    raise NotFound("file", path)


def hand_out(row: Checkpoint | Artifact, user: User) -> None:
    """Record in the audit trail who gets an object's key or content, before it leaves the platform.

    Of a shared artifact, the team that reads it has the same record as of its own, and the owner another.
    """
    kind = "artifact" if isinstance(row, Artifact) else "checkpoint"
    facts = {"job": row.job_id, "step": row.step}
    target = (kind, row.pk)
    with transaction.atomic():
        if row.granted is not None:
            shared = {**facts, "team": row.granted.team.name}
            audit.record("artifact.shared_download", actor=user, target=target, team_id=row.owner.id, after=shared)
        audit.record(f"{kind}.download", actor=user, target=target, team_id=row.reader_id, after=facts)


def _fetched(part: StoredPart) -> bytes:
    content = storage.get(part.key)
    if content is None:
        raise NotFound("object", part.key)
    return content


def check_is_whole(job_id: str, manifest: Manifest) -> None:
    """Check that every part lies under the job's prefix and is stored with the manifest's size."""
    if not manifest.files:
        raise Invalid("empty_manifest", "the manifest names no files", remedy="store the files first")
    parts = [part for file in manifest.files for part in file.parts]
    for part in parts:
        if not buckets.is_below_any(part.key, [job_prefix(job_id)]):
            raise Forbidden("outside_prefix", f"{part.key!r} is not under {job_prefix(job_id)}")
    if (wrong := find_wrong_part(parts)) is not None:
        part, state = wrong
        raise Invalid(
            "part_missing", f"{part.key} {state}; the manifest says {part.size}", remedy="upload it, then register"
        )


def find_wrong_part(parts: list[StoredPart]) -> tuple[StoredPart, str] | None:
    """Return the first part that is not stored with its size, and what is wrong with it; None if all are."""
    sizes = storage.sizes_of([part.key for part in parts])
    for part in parts:
        found = sizes.get(part.key)
        if found != part.size:  # a listing may be older than the object
            found = storage.size_of(part.key)
        if found != part.size:
            return part, "is not in the store" if found is None else f"has {found} bytes in the store"
    return None


def size_of_files(files: list[StoredFile]) -> int:
    """Return the stored bytes of these files."""
    return sum(part.size for file in files for part in file.parts)
