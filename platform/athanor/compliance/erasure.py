"""Erasing a deleted team: first its keys are destroyed, then objects and records, last a certificate is written.

All that the team stored is encrypted with data keys that the team's key wraps. Destroying that key and the wrapped
data keys in one transaction makes every object unreadable, also copies of the store. Copies of the database from
before still hold the wrapped keys: with such a backup and the master key of its time, copies of the objects can be
read until the backup is destroyed. The certificate says so (REMAINS).

Each step is safe to repeat, and a sweep that is killed continues where the rows say. Jobs and attempts stay as
skeletons (ids, names, times, slots), since the cost ledger refers to them; the audit trail stays.
"""

import hashlib
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Max, Model, Q, QuerySet
from django.utils import timezone

from athanor.accounts import audit, members
from athanor.accounts.models import ApiToken, Invitation, Membership, Team, User
from athanor.alerts.models import Alert, AlertRule, Mail, Notification
from athanor.artifacts import deletion_hold, deletions, grants, rotation, storage
from athanor.artifacts.models import (
    Artifact,
    Checkpoint,
    DataReport,
    Dataset,
    Deletion,
    EvaluationResult,
    GrantedKey,
    JobStorage,
    ModelImport,
    ModelVersion,
    PreparedDataset,
    Profile,
    RegisteredModel,
    ReplayedSegment,
    TeamKey,
)
from athanor.artifacts.services import job_prefix
from athanor.compliance import certificates
from athanor.compliance.models import Erasure
from athanor.core.errors import NotFound
from athanor.jobs.models import (
    Attempt,
    AttemptNode,
    DatasetUse,
    IdempotencyRecord,
    Job,
    JobEvent,
    Label,
    NameSearch,
    Project,
    RendezvousRound,
)
from athanor.jobs.states import FINAL
from athanor.quotas import services as quotas
from athanor.quotas.models import QuotaNode
from athanor.scheduling.models import StartEstimate
from athanor.telemetry.models import Heartbeat, LogChunk, MetricChunk, MetricSegment, Progress, Writer
from athanor.webhooks.models import Delivery, Webhook

ACTOR = "storage"
LEASE = timedelta(minutes=10)  # longer than a page takes
MAX_PAGES = 100  # of 1,000 objects, in one sweep
# URLs that an attempt got before its end still write until they expire.
URLS_EXPIRE = storage.PRESIGNED_FOR + timedelta(minutes=10)
OF_ATTEMPTS: tuple[type[Model], ...] = (
    Heartbeat, Writer, MetricChunk, MetricSegment, LogChunk, AttemptNode, RendezvousRound,
)  # fmt: skip
OF_JOBS: tuple[type[Model], ...] = (
    Profile, Artifact, Checkpoint, PreparedDataset, DataReport, JobStorage, Progress, JobEvent, Label, DatasetUse,
    NameSearch, IdempotencyRecord, StartEstimate,
)  # fmt: skip
REMAINS = (
    "the audit trail and the cost ledger, with the names of the team, its jobs, projects and users",
    "ids, names, times and slots of jobs and attempts, and recorded decisions of admission, which name them",
    "backups and deleted rows of PostgreSQL, until they are destroyed or vacuumed: with one from before the erasure "
    "and the master key of its time, copies of the object store from before can still be read",
    "answers stored for an Idempotency-Key, encrypted, until they are a day old",
    "caches on compute nodes, until the node's cache evicts them or it is cleared",
    "keys in the memory of processes that used them, until they are restarted",
    "older versions of objects in a bucket that keeps versions; they cannot be decrypted",
    "data in buckets of others, which the platform only read",
    "models that the team had shared: what other teams downloaded, and what their jobs trained from them",
)
log = logging.getLogger(__name__)


def due() -> QuerySet[Deletion]:
    """Return deletions of teams whose erasure is due to begin or continue."""
    return deletions.due_of_any_kind().filter(kind=Deletion.Kind.TEAM)


@deletion_hold.unless_held
def run_due(limit: int = 5, max_pages: int = MAX_PAGES) -> int:
    """Continue due erasures. Return how many are complete. Safe to repeat and to run concurrently."""
    done = 0
    for row in due().order_by(F("purge_started_at").asc(nulls_first=True), "purge_after")[:limit]:
        erasure = _begin(row)
        if erasure is None or not _claim(erasure):
            continue
        if _delete_content(erasure, max_pages):
            done += _finish(erasure)
        Erasure.objects.filter(pk=erasure.pk).update(claimed_until=None)
    return done


def certificate_of(row: Deletion) -> dict[str, Any]:
    """Return the certificate of a team's erasure. Raises NotFound before it is complete."""
    found = Erasure.objects.filter(deletion=row).exclude(certificate=None).first()
    if found is None or found.certificate is None:
        raise NotFound("certificate of erasure of", row.id)
    certificate: dict[str, Any] = found.certificate
    return certificate


def _begin(row: Deletion) -> Erasure | None:
    """Destroy the keys, which makes it final. None: it was restored, or a job is still running."""
    with transaction.atomic():
        locked = Deletion.objects.select_for_update(no_key=True).get(pk=row.pk)
        if locked.restored_at or locked.purged_at:
            return None
        found = Erasure.objects.filter(deletion=locked).first()
        if found is not None:
            return found
        team = Team.objects.select_for_update().get(pk=locked.target_id)
        if Job.objects.filter(team=team).exclude(status__in=FINAL).exists():
            log.error("team %s is not erased: it has unfinished jobs", team.id)
            return None
        locked.purge_started_at = timezone.now()
        locked.save(update_fields=["purge_started_at"])
        destroyed = _destroy_keys(team)
        made = Erasure.objects.create(
            deletion=locked, team=team, team_name=team.name, keys=destroyed, keys_destroyed_at=locked.purge_started_at
        )
        grants.end(list(grants.given_or_received(team)), ACTOR)
        facts = {name: value["count"] for name, value in destroyed.items()}
        audit.record("team.keys_destroyed", actor=ACTOR, target=("team", team.id), team_id=team.id, after=facts)
        return made


def _claim(erasure: Erasure) -> bool:
    """Return whether this worker carries it on: one at a time, so that what is counted is counted once."""
    now = timezone.now()
    free = Erasure.objects.filter(pk=erasure.pk).filter(Q(claimed_until=None) | Q(claimed_until__lt=now))
    return free.update(claimed_until=now + LEASE) == 1


def _destroy_keys(team: Team) -> dict[str, Any]:
    """Delete all that the master key and the team's key wrap, and copies of its data keys that keys of other teams
    wrap, for models that it shares. Returns fingerprints of the wrapped keys."""
    tables: dict[str, type[Model]] = {"team_key": TeamKey}
    tables.update({model._meta.model_name or model.__name__.lower(): model for model in rotation.WRAPPED})
    found: dict[str, Any] = {}
    for name, model in tables.items():
        chosen = Q(team=team) | Q(grant__owner=team) if model is GrantedKey else Q(team=team)
        rows = model._default_manager.filter(chosen)
        prints = [hashlib.sha256(bytes(wrapped)).hexdigest() for wrapped in rows.values_list("wrapped", flat=True)]
        found[name] = {"count": len(prints), "sha256_of_wrapped": sorted(prints)}
        rows.delete()
    return found


def _delete_content(erasure: Erasure, max_pages: int) -> bool:
    """Delete objects and records, job by job. Returns whether nothing is left."""
    jobs = Job.objects.filter(team_id=erasure.team_id)
    ended = Attempt.objects.filter(job__in=jobs).aggregate(last=Max("ended_at"))["last"]
    if ended is not None and timezone.now() < ended + URLS_EXPIRE:
        return False
    pages = 0
    for job in jobs.filter(pk__gt=erasure.cursor).order_by("pk").iterator(chunk_size=100):
        pages += _empty(job_prefix(job.id), erasure, max_pages - pages)
        if pages >= max_pages:
            return False
        with transaction.atomic():
            _scrub(job)
            erasure.cursor = job.id
            Erasure.objects.filter(pk=erasure.pk).update(cursor=job.id, num_jobs=F("num_jobs") + 1)
    return _empty(f"teams/{erasure.team_id}/", erasure, max_pages - pages) < max_pages - pages


def _empty(prefix: str, erasure: Erasure, max_pages: int) -> int:
    """Delete every object below a prefix. Returns how many pages that took; `max_pages` when some may be left."""
    for number in range(max(max_pages, 0)):
        page = storage.page(prefix)
        if not page.items:
            storage.abort_uploads(prefix, before=timezone.now() + timedelta(days=1))
            return number
        storage.delete([item.key for item in page.items])
        size = sum(item.size for item in page.items)
        Erasure.objects.filter(pk=erasure.pk).update(
            num_objects=F("num_objects") + len(page.items),
            num_bytes=F("num_bytes") + size,
            claimed_until=timezone.now() + LEASE,
        )
    return max_pages


def _scrub(job: Job) -> None:
    """Delete what a job recorded; what the cost ledger refers to stays."""
    attempts = Attempt.objects.filter(job=job)
    for model in OF_ATTEMPTS:
        model._default_manager.filter(attempt__in=attempts).delete()
    shared = EvaluationResult.objects.filter(artifact__job=job).exclude(team_id=job.team_id)
    shared.update(artifact=None)  # results of other teams, which `base` names
    EvaluationResult.objects.filter(Q(job=job) | Q(artifact__job=job)).delete()  # of and by the job, before both
    ReplayedSegment.objects.filter(Q(job=job) | Q(replayed=job)).delete()
    ModelVersion.objects.filter(artifact__job=job).delete()  # with their aliases, before their artifacts
    for model in OF_JOBS:
        model._default_manager.filter(job=job).delete()
    attempts.update(
        submission_text="",
        end_report=None,
        reason_detail="",
        explanation="",
        native_reason="",
        native_nodes=[],
        lost_nodes=[],
    )
    Job.objects.filter(pk=job.pk).update(
        spec={}, resolved_spec={}, labels={}, warnings=[], reason_detail="", waiting=None, schedule=None
    )


def _finish(erasure: Erasure) -> int:
    """Delete the rest of the team's records, and write the certificate in the same transaction."""
    deleted = Deletion.objects.select_related("team", "deleted_by").get(pk=erasure.pk)
    # Each in a transaction of its own: they lock before they record, and the trail is locked to a transaction's end.
    accounts = _retire_accounts(deleted)
    _release_quota(deleted)
    with transaction.atomic():
        row = Deletion.objects.select_for_update(no_key=True, of=("self",)).select_related("team").get(pk=erasure.pk)
        if row.purged_at is not None:
            return 0
        erasure.refresh_from_db()
        team, now = row.team, timezone.now()
        records = _delete_records(team, row)
        row.purged_at = now
        row.save(update_fields=["purged_at"])
        content = {
            "team": {"id": team.id, "name": erasure.team_name},
            "deletion": row.id,
            "deleted_by": row.deleted_by.username if row.deleted_by else "",
            "deleted_at": row.created_at.isoformat(),
            "keys_destroyed_at": erasure.keys_destroyed_at.isoformat(),
            "keys": erasure.keys,
            "objects": {"count": erasure.num_objects, "bytes": erasure.num_bytes, "prefixes_empty_at": now.isoformat()},
            "records": {"jobs": erasure.num_jobs, "service_accounts": accounts, **records},
            "remains": list(REMAINS),
            "completed_at": now.isoformat(),
        }
        facts = {"deletion": row.id, "sha256": certificates.digest_of(content)}
        event = audit.record("team.erased", actor=ACTOR, target=("team", team.id), team_id=team.id, after=facts)
        certificate = certificates.make({**content, "audit": {"seq": event.seq, "digest": event.digest}})
        Erasure.objects.filter(pk=erasure.pk).update(certificate=certificate)
    return 1


def _retire_accounts(row: Deletion) -> int:
    """Retire the team's service accounts. Returns how many it ever had."""
    for account in User.objects.filter(service_team=row.team, is_active=True):
        members.retire_service_account(account, row.deleted_by or account)
    return User.objects.filter(service_team=row.team).count()


def _release_quota(row: Deletion) -> None:
    """Take the team's slots away, so that others have them. Its node stays, since budgets and their ledger need it."""
    leaf = QuotaNode.objects.filter(team=row.team, grants__isnull=False).first()
    if leaf is not None and row.deleted_by is not None:
        quotas.change_tree(lambda tree: {**tree, leaf.id: replace(tree[leaf.id], grants={})}, row.deleted_by)


def _delete_imports(team: Team) -> int:
    """Delete the records of imported models, after their versions. Return how many."""
    count = ModelImport.objects.filter(team=team).count()
    imported = Artifact.objects.filter(model_import__team=team)
    EvaluationResult.objects.filter(artifact__in=imported).exclude(team=team).update(artifact=None)
    EvaluationResult.objects.filter(artifact__in=imported).delete()
    imported.delete()
    ModelImport.objects.filter(team=team).delete()  # of uploads that stopped
    return count


def _delete_records(team: Team, deletion: Deletion) -> dict[str, int]:
    """Delete what belongs to the team and to none of its jobs. Returns how many rows, by kind."""
    found = {}
    for name, model in {
        "notifications": Notification, "mails": Mail, "alerts": Alert, "alert_rules": AlertRule,
        "deliveries": Delivery, "webhooks": Webhook, "models": RegisteredModel, "datasets": Dataset,
        "projects": Project, "invitations": Invitation, "tokens": ApiToken, "members": Membership,
    }.items():  # fmt: skip
        found[name] = model._default_manager.filter(team=team).count()
        model._default_manager.filter(team=team).delete()
    found["imported_models"] = _delete_imports(team)
    Deletion.objects.filter(team=team).exclude(pk=deletion.pk).delete()
    # The name is free again; the costs of the past still show whose they were.
    Team.objects.filter(pk=team.pk).update(name=f"{team.name[:40]}-erased-{team.id[-8:].lower()}")
    return found
