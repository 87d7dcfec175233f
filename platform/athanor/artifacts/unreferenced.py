"""Objects under a job's prefix that no manifest names: counted as storage of the team, then deleted.

An attempt may write any object under its job's prefix, so a compromised node can store objects that the platform is
never informed of; a save that is killed leaves parts behind too. `sweep` lists each prefix, page by page, while the job
runs and until nothing is left to delete. It does not delete:

- what the manifest of a checkpoint, artifact, prepared data set or data report names, until its own purge deletes it;
- objects younger than ATHANOR_UNREFERENCED_HOURS, and all that the live attempt can have written: a save in flight;
- anything of a job with a manifest that is not authentic, since then it is unknown what belongs to the job.

A worker that is killed loses one page at most: the position is stored after each page, and deleting is safe to repeat.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, F, Max, OuterRef, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.artifacts import deletion_hold, manifests, storage
from athanor.artifacts.models import Artifact, Checkpoint, DataReport, JobStorage, PreparedDataset
from athanor.artifacts.services import job_prefix
from athanor.core import ids
from athanor.core.errors import Conflict
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import FINAL, AttemptStatus
from trainer.contract.manifest import MANIFEST_NAME

NEW_ATTEMPTS_WITHIN = timedelta(days=30)  # an attempt is noticed if this runs once in that time
WHILE_RUNNING, WHILE_WAITING, AFTER_FAILURE = timedelta(minutes=10), timedelta(hours=1), timedelta(hours=1)
LEASE = timedelta(minutes=5)
CLOCKS_DIFFER = timedelta(hours=1)  # between the store and the platform, generously
MAX_PAGES = 20  # of 1,000 objects, in one sweep
MAX_MANIFEST_BYTES = 64 * 2**20  # of the copy that a trainer writes beside a checkpoint's parts
MAX_NOTE_BYTES = 2**20  # of each of an agent's notes to the platform and to the next attempt
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Rule:
    """`kept`: sizes of what belongs to the job, by key. Other objects may be deleted if last written before `until`."""

    kept: dict[str, int]
    until: datetime

    def excess(self, item: storage.Listed) -> int | None:
        """Return the bytes of an object that no manifest accounts for; None if it is accounted for completely."""
        if item.key not in self.kept:
            return item.size
        return item.size - self.kept[item.key] if item.size > self.kept[item.key] else None

    def may_delete(self, item: storage.Listed) -> bool:
        return item.key not in self.kept and item.modified is not None and item.modified < self.until


def due(now: datetime | None = None) -> QuerySet[JobStorage]:
    """Return the prefixes that are due for a scan."""
    return JobStorage.objects.filter(next_scan_at__lte=now or timezone.now(), team__deleted_at=None)


@deletion_hold.unless_held
def sweep(now: datetime | None = None, max_pages: int = MAX_PAGES) -> int:
    """Scan the due prefixes, at most `max_pages` pages of them. Return how many objects were deleted."""
    now = now or timezone.now()
    _notice_attempts(now)
    removed = pages = 0
    while pages < max_pages:
        row = _claimed(now)
        if row is None:
            return removed
        is_complete = False
        while pages < max_pages and not is_complete:
            pages += 1
            try:
                count, is_complete = _scan_page(row, now)
            except Conflict:
                log.exception("unreferenced objects of %s stay in the store", row.pk)
                JobStorage.objects.filter(pk=row.pk).update(
                    next_scan_at=now + AFTER_FAILURE, cursor="", found_objects=0, found_bytes=0
                )
                break
            removed += count
        else:
            if not is_complete:  # the next sweep continues at the cursor
                JobStorage.objects.filter(pk=row.pk).update(next_scan_at=now)
    return removed


def _notice_attempts(now: datetime) -> None:
    """Schedule scans of jobs with attempts that no scan knows of."""
    known = JobStorage.objects.filter(job=OuterRef("job"), newest_attempt__gte=OuterRef("pk"))
    recent = Attempt.objects.filter(pk__gte=ids.earliest_id("att", timezone.now() - NEW_ATTEMPTS_WITHIN))
    new = recent.filter(~Exists(known)).values("job_id", "job__team_id").annotate(newest=Max("pk"))
    rows = [
        JobStorage(job_id=each["job_id"], team_id=each["job__team_id"], newest_attempt=each["newest"], next_scan_at=now)
        for each in new.order_by("newest")[:1000]
    ]
    JobStorage.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=["job"], update_fields=["newest_attempt", "next_scan_at"]
    )


def _claimed(now: datetime) -> JobStorage | None:
    """Lease the prefix that has waited longest. If this worker is killed, another takes it when the lease expires."""
    for row in due(now).select_related("job__team").order_by("next_scan_at")[:5]:
        # The worker that finds the time unchanged takes the row.
        if JobStorage.objects.filter(pk=row.pk, next_scan_at=row.next_scan_at).update(next_scan_at=now + LEASE):
            return row
    return None


def _scan_page(row: JobStorage, now: datetime) -> tuple[int, bool]:
    """Scan the next page of a prefix. Return how many objects were deleted, and whether it was the last page."""
    prefix = job_prefix(row.job_id)
    page = storage.page(prefix, after=row.cursor)
    rule = _rule_of(row.job, now)  # after the listing: what was registered meanwhile is known
    junk = [(item, excess) for item in page.items if (excess := rule.excess(item)) is not None]
    doomed = [item for item, _ in junk if rule.may_delete(item)]
    storage.delete([item.key for item in doomed])
    gone = {item.key for item in doomed}
    row.found_objects += len(junk) - len(doomed)
    row.found_bytes += sum(excess for item, excess in junk if item.key not in gone)
    row.cursor = page.items[-1].key if page.items and not page.is_last else ""
    if page.is_last:
        storage.abort_uploads(prefix, before=rule.until)
    with transaction.atomic():
        # A new attempt that is noticed from here on schedules a scan after this transaction.
        JobStorage.objects.select_for_update(no_key=True).get(pk=row.pk)
        if page.is_last:
            row.unreferenced_objects, row.unreferenced_bytes = row.found_objects, row.found_bytes
            row.found_objects = row.found_bytes = 0
            row.scanned_at = now
            row.next_scan_at = _next_scan(row, now)
        else:
            row.next_scan_at = now + LEASE
        fields = ("cursor", "found_objects", "found_bytes", "unreferenced_objects", "unreferenced_bytes", "scanned_at",
                  "next_scan_at")  # fmt: skip
        row.save(update_fields=fields)
        if doomed:
            size = sum(item.size for item in doomed)
            JobStorage.objects.filter(pk=row.pk).update(
                removed_objects=F("removed_objects") + len(doomed), removed_bytes=F("removed_bytes") + size
            )
            facts = {"objects": len(doomed), "size_bytes": size}
            target = ("job", row.job_id)
            audit.record("storage.unreferenced", actor="storage", target=target, team_id=row.team_id, after=facts)
    return len(doomed), page.is_last


def _rule_of(job: Job, now: datetime) -> _Rule:
    """Return which objects of the job may be deleted. Raise Conflict for a manifest that is not authentic."""
    kept = _referenced(job)
    attempts = list(Attempt.objects.filter(job=job).defer("submission_text", "end_report"))
    until = now - timedelta(hours=settings.ATHANOR.unreferenced_hours)
    for attempt in attempts:
        if attempt.status != AttemptStatus.ENDED.value:
            until = min(until, attempt.created_at - CLOCKS_DIFFER)
    job.refresh_from_db(fields=["status"])
    if job.status not in {status.value for status in FINAL}:  # they are read until the job ends
        notes = ["micro-batch.json", *(f"{attempt.number}/end.json" for attempt in attempts)]
        kept.update({f"{job_prefix(job.id)}attempts/{note}": MAX_NOTE_BYTES for note in notes})
    return _Rule(kept, until)


def _referenced(job: Job) -> dict[str, int]:
    """Return the sizes of all objects that manifests name, by key."""
    checkpoints = list(Checkpoint.objects.filter(job=job, deleted_at=None).select_related("job__team"))
    artifacts = list(Artifact.objects.filter(job=job, deletion__purged_at=None).select_related("job__team"))
    prepared = PreparedDataset.objects.filter(job=job).select_related("dataset__team")
    files = [file for row in artifacts for file in manifests.of_stored(row).files]
    files += [file for row in prepared for file in manifests.of_preparation(row).files]
    reports = DataReport.objects.filter(job=job).select_related("dataset__team")
    files += [file for row in reports for file in manifests.of_report(row).files]
    of_checkpoints = [file for row in checkpoints for file in manifests.of_checkpoint(row).files]
    beside = {part.key.rpartition("/")[0] for file in of_checkpoints for part in file.parts}
    found = {f"{folder}/{MANIFEST_NAME}": MAX_MANIFEST_BYTES for folder in beside}
    found.update({part.key: part.size for file in [*files, *of_checkpoints] for part in file.parts})
    return found


def _next_scan(row: JobStorage, now: datetime) -> datetime | None:
    """Return when to scan again; None if nothing can be written there before another attempt."""
    attempts = Attempt.objects.filter(job_id=row.job_id)
    if attempts.exclude(status=AttemptStatus.ENDED.value).exists():
        return now + WHILE_RUNNING
    ended = attempts.aggregate(last=Max("ended_at"))["last"] or now
    over = ended + timedelta(hours=settings.ATHANOR.unreferenced_hours) + CLOCKS_DIFFER
    if now < over:
        return min(over, now + WHILE_WAITING)
    return now + WHILE_WAITING if row.unreferenced_objects else None
