"""Data sets as their page shows them: the first rows, the digest of the content, and how tokenising goes."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db import transaction

from athanor.accounts import audit
from athanor.accounts.models import User
from athanor.artifacts import data_reports, keys, manifests, parquet_rows, storage
from athanor.artifacts.inspection import PARQUET_MAGIC, SAMPLE_BYTES, Inspection, inspect, inspect_footer
from athanor.artifacts.models import Dataset, PreparedDataset
from athanor.core.errors import Conflict, Invalid, Unavailable
from athanor.jobs.models import DatasetUse, Job
from athanor.jobs.states import FINAL
from trainer.contract.manifest import StoredFile

PARQUET_SECONDS = 30
PARQUET_MEMORY_BYTES = 2 * 2**30
ROWS_NEED_ONE_PART = "Rows are shown of parquet files of up to 32 MiB; this one is larger."
ROWS_UNREADABLE = "The rows of this parquet file could not be read within the limits of a preview: "


@dataclass(frozen=True)
class Preparation:
    """How tokenising a data set goes.

    State `none`: the first job that trains on it tokenises it. `job`: the latest job that only tokenises it, if there
    was one. `ready`: the newest tokenised form, if there is one.
    """

    state: Literal["none", "running", "ready", "failed"]
    job: Job | None
    ready: PreparedDataset | None


def load_preparations(rows: Sequence[Dataset]) -> None:
    """Set `preparation` of data sets, how tokenising each goes, and `report`."""
    data_reports.load_newest(rows)
    dataset_ids = [row.id for row in rows]
    uses = DatasetUse.objects.filter(dataset_id__in=dataset_ids, prepares=True).select_related("job__progress")
    jobs = {use.dataset_id: use.job for use in uses.order_by("dataset_id", "-job_id").distinct("dataset_id")}
    known = PreparedDataset.objects.filter(dataset_id__in=dataset_ids, forgotten_at__isnull=True)
    ready = {row.dataset_id: row for row in known.order_by("dataset_id", "-id").distinct("dataset_id")}
    for row in rows:
        row.preparation = _preparation(jobs.get(row.id), ready.get(row.id))


def _preparation(job: Job | None, ready: PreparedDataset | None) -> Preparation:
    if job is not None and job.status not in FINAL:
        return Preparation("running", job, ready)
    if ready is not None:
        return Preparation("ready", job, ready)
    failed = job is not None and job.status in ("failed", "expired")
    return Preparation("failed" if failed else "none", job, None)


def tokenised_forms(row: Dataset) -> list[PreparedDataset]:
    """Return the tokenised forms that jobs may use, newest first."""
    return list(PreparedDataset.objects.filter(dataset=row, forgotten_at__isnull=True).order_by("-id"))


def digest(row: Dataset) -> str:
    """Return the SHA-256 of an upload's content: of the names, sizes and digests of its files' encrypted parts.

    Equal content that is uploaded twice is encrypted with different keys, so it has two digests.
    """
    parts = [[file["path"], [[part["sha256"], part["plaintext_size"]] for part in file["parts"]]] for file in row.files]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def preview(row: Dataset, user: User, rows: int) -> Inspection:
    """Return what the first file of an upload holds, with up to `rows` rows. The reading is audited.

    Raises Invalid for a data set that is not an upload, Unavailable if the object store does not answer, Conflict if
    the file is damaged.
    """
    if row.origin != Dataset.Origin.SEALED:
        detail = f"{row.spec_source} is not stored by the platform"
        raise Invalid("no_preview", detail, remedy="look at it where it is stored")
    with transaction.atomic():
        target, facts = ("dataset", row.id), {"rows": rows}
        audit.record("dataset.preview", actor=user, target=target, team_id=row.team_id, after=facts)
    file = manifests.of_upload(row)[0]
    first = read_part(row, file, 0)
    if first[:4] == PARQUET_MAGIC:
        return _parquet(row, file, first, rows)
    return inspect(file.path, first[:SAMPLE_BYTES], row.format, rows=rows)


def read_part(row: Dataset, file: StoredFile, number: int) -> bytes:
    """Return one decrypted part of a file."""
    part = file.parts[number]
    content = storage.get(part.key)
    if content is None:
        raise Conflict(
            "dataset_damaged",
            f"{file.path} of {row} is not in the object store any more",
            remedy="restore the object from a backup, or delete the data set and upload it again",
        )
    try:
        return keys.encryptor(row.id, row.team).decrypt(content, part)
    except ValueError as error:
        raise Conflict(
            "dataset_damaged",
            f"{file.path} of {row} is damaged in the object store: {error}",
            remedy="restore the object from a backup, or delete the data set and upload it again",
        ) from error


def _parquet(row: Dataset, file: StoredFile, first: bytes, limit: int) -> Inspection:
    last = first if len(file.parts) == 1 else read_part(row, file, len(file.parts) - 1)
    found = inspect_footer(file.path, last) or Inspection("parquet")
    if len(file.parts) > 1:
        return Inspection("parquet", found.fields, found.text_field, [], found.documents, ROWS_NEED_ONE_PART)
    rows, note = _parquet_rows(first, limit)
    return Inspection("parquet", found.fields, found.text_field, rows, found.documents, note)


def _parquet_rows(content: bytes, limit: int) -> tuple[list[Any], str]:
    """Return the first rows of a parquet file, and a note if they cannot be read."""
    try:
        ended = subprocess.run(
            [sys.executable, "-I", "-m", parquet_rows.__name__, str(limit), str(PARQUET_MEMORY_BYTES)],
            input=content, capture_output=True, timeout=PARQUET_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [], f"{ROWS_UNREADABLE}it took longer than {PARQUET_SECONDS} s"
    except OSError as error:
        raise Unavailable("no_process", f"no process could be started: {error}", remedy="try again") from error
    if ended.returncode != 0:
        reason = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return [], ROWS_UNREADABLE + (reason or f"exit status {ended.returncode}")
    return [json.loads(line) for line in ended.stdout.splitlines()], ""
