"""The objects that the database refers to, read in the snapshot of a backup.

Left out are objects that are being deleted: those of retired checkpoints, of deletions that can no longer be undone,
and of teams that are being erased. Parts of a save that is not registered yet are not referred to either.
"""

from collections.abc import Iterator
from typing import Any

from django.db.models import Model, Q

from athanor.artifacts.models import Artifact, Checkpoint, DataReport, Dataset, Deletion, PreparedDataset
from athanor.artifacts.services import job_prefix
from athanor.jobs.models import Attempt
from athanor.jobs.states import FINAL
from trainer.contract.manifest import MANIFEST_NAME, StoredFile, StoredPart

CHUNK = 500  # rows read at a time


def parts() -> Iterator[StoredPart]:
    """Yield the parts that manifests name. A part may be named more than once."""
    for files in _files():
        for file in files:
            yield from StoredFile.model_validate(file).parts


def notes() -> Iterator[str]:
    """Yield the keys of objects that may exist and that no manifest names, since an agent writes them.

    They are a checkpoint's own copy of its manifest, and what the agents of an unfinished job note for the next.
    """
    for row in _checkpoints().iterator(chunk_size=CHUNK):
        first = StoredFile.model_validate(row["manifest"]["files"][0]).parts[0]
        yield f"{first.key.rpartition('/')[0]}/{MANIFEST_NAME}"
    attempts = Attempt.objects.exclude(job__status__in=[status.value for status in FINAL])
    jobs = set()
    for job_id, number in attempts.values_list("job_id", "number"):
        if job_id not in jobs:
            jobs.add(job_id)
            yield f"{job_prefix(job_id)}attempts/micro-batch.json"
        yield f"{job_prefix(job_id)}attempts/{number}/end.json"


def _files() -> Iterator[list[Any]]:
    for row in _checkpoints().iterator(chunk_size=CHUNK):
        yield row["manifest"]["files"]
    for of_team in ("job__team_id", "model_import__team_id"):
        artifacts = Artifact.objects.exclude(**{of_team: None}).filter(_stays(of_team)).order_by("pk")
        for row in artifacts.values("manifest").iterator(chunk_size=CHUNK):
            yield row["manifest"]["files"]
    of_datasets: tuple[type[Model], ...] = (PreparedDataset, DataReport)
    for model in of_datasets:
        rows = model._default_manager.filter(_stays("dataset__team_id", "dataset__")).order_by("pk")
        for row in rows.values("manifest").iterator(chunk_size=CHUNK):
            yield row["manifest"]["files"]
    uploads = Dataset.objects.filter(_stays("team_id"), origin=Dataset.Origin.SEALED).order_by("pk")
    for row in uploads.values("files").iterator(chunk_size=CHUNK):
        yield row["files"]


def _checkpoints() -> Any:
    return Checkpoint.objects.filter(_stays("job__team_id"), retired_at=None).order_by("pk").values("manifest")


def _stays(team: str, prefix: str = "") -> Q:
    """Return the condition that nobody is deleting the objects of a row."""
    erased = Deletion.objects.filter(kind=Deletion.Kind.TEAM).exclude(purge_started_at=None).values("target_id")
    return Q(**{f"{prefix}deletion__purge_started_at": None}) & ~Q(**{f"{team}__in": erased})
