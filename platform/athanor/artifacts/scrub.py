"""The scrub: stored checkpoints are read in the background and compared with their manifests.

It reads the parts as they are stored, encrypted, and compares their sizes and digests. First comes a checkpoint that it
has begun, then the one that each unfinished job would resume from, then the one that was verified longest ago; each is
read again after VERIFY_AGAIN. All workers together read ATHANOR_SCRUB_GIB_PER_HOUR; 0 turns the scrub off.

A checkpoint is damaged if a part is missing or differs in two reads. A store that does not answer, refuses the read or
has no bucket says nothing about a checkpoint: it ends the run with an error. A manifest that is not authentic says
nothing about the parts either; its row shows that (`authentic` of the API), and it is tried again after an hour.
"""

import hashlib
import logging
import time
from datetime import timedelta
from enum import Enum, auto

from django.conf import settings
from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Greatest, Now
from django.utils import timezone

from athanor.artifacts import checkpoint_states, manifests, storage
from athanor.artifacts.checkpoint_retention import NEWEST_FIRST
from athanor.artifacts.models import Checkpoint, ScrubBudget
from athanor.artifacts.services import INTACT
from athanor.core import leases
from athanor.core.errors import Conflict
from athanor.core.leases import Lease
from athanor.jobs.models import Job
from athanor.jobs.states import FINAL
from trainer.contract.manifest import StoredPart

ACTOR = "storage"
VERIFY_AGAIN = timedelta(days=7)
RUN_SECONDS = 20.0
MAX_CHECKPOINTS = 20  # in one run
LEASE_SECONDS = 300.0  # renewed with each part
AFTER_FAILURE = timedelta(hours=1)
UNSPENT_FOR = timedelta(minutes=1)  # for so long the budget is saved up: a run reads what the minute before it allows
OF_A_TEAM = Q(job__team__deleted_at=None)  # the objects of a deleted team may be gone
log = logging.getLogger(__name__)


class Outcome(Enum):
    """How the verification of a checkpoint ended. PAUSED: budget or time is over. LOST: it is another worker's now, or
    was retired, deleted or marked meanwhile."""

    INTACT = auto()
    DAMAGED = auto()
    PAUSED = auto()
    LOST = auto()


def due() -> QuerySet[Checkpoint]:
    """Return the checkpoints to verify; none while the scrub is off."""
    if not settings.ATHANOR.scrub_gib_per_hour:
        return Checkpoint.objects.none()
    return Checkpoint.objects.filter(INTACT, OF_A_TEAM).filter(
        Q(verified_at=None) | Q(verified_at__lt=Now() - VERIFY_AGAIN)
    )


def scrub() -> int:
    """Verify due checkpoints while the budget and RUN_SECONDS last. Return how many are found intact.

    Raise Unavailable if the object store does not answer.
    """
    until = time.monotonic() + RUN_SECONDS
    intact = 0
    for lease in leases.claim_each(_by_urgency(due()), seconds=LEASE_SECONDS, limit=MAX_CHECKPOINTS):
        try:
            outcome = _verify(lease, until)
        except Conflict:
            log.exception("the parts of %s are not verified", lease.pk)
            held = Checkpoint.objects.filter(pk=lease.pk, lease_token=lease.token)
            held.update(lease_until=Now() + AFTER_FAILURE)
            continue
        if outcome is Outcome.PAUSED:
            leases.release(Checkpoint, lease)
            break
        intact += outcome is Outcome.INTACT
    return intact


def _by_urgency(rows: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
    newest = Checkpoint.objects.filter(INTACT, job=OuterRef("job")).order_by(*NEWEST_FIRST).values("pk")[:1]
    is_next = Q(pk=Subquery(newest)) & ~Q(job__status__in=FINAL)
    return rows.annotate(
        is_begun=ExpressionWrapper(Q(verified_parts__gt=0), BooleanField()),
        is_next=ExpressionWrapper(is_next, BooleanField()),
    ).order_by("-is_begun", "-is_next", F("verified_at").asc(nulls_first=True), "created_at")


def _verify(lease: Lease, until: float) -> Outcome:
    """Compare the parts of a leased checkpoint that this pass has not read yet."""
    row = Checkpoint.objects.select_related("job__team").get(pk=lease.pk)
    parts = [part for file in manifests.of_checkpoint(row).files for part in file.parts]
    for number, part in enumerate(parts[row.verified_parts :], start=row.verified_parts + 1):
        if time.monotonic() >= until or not _reserve(part.size):
            return Outcome.PAUSED
        problem = _problem_of(part) and _problem_of(part)  # a wrong read is not yet a wrong object
        if problem:
            return _mark_damaged(row, lease, problem)
        if not _held(lease).update(verified_parts=number, lease_until=Now() + timedelta(seconds=LEASE_SECONDS)):
            return Outcome.LOST
    done = _held(lease).update(verified_at=Now(), verified_parts=0, lease_token=None, lease_until=None)
    return Outcome.INTACT if done else Outcome.LOST


def _held(lease: Lease) -> QuerySet[Checkpoint]:
    """Return the leased row, unless another worker took over, or it is no longer what the scrub reads."""
    return Checkpoint.objects.filter(INTACT, pk=lease.pk, lease_token=lease.token, lease_until__gt=Now())


def _problem_of(part: StoredPart) -> str:
    """Read a part. Return how it differs from its manifest, as a sentence; empty if it does not."""
    content = storage.get(part.key)
    if content is None:
        return f"{part.key} is not in the object store."
    if len(content) != part.size:
        return f"{part.key} has {len(content)} bytes in the object store; the manifest says {part.size}."
    if hashlib.sha256(content).hexdigest() != part.sha256:
        return f"The SHA-256 digest of {part.key} differs from the manifest's."
    return ""


def _reserve(size: int) -> bool:
    """Take bytes from the budget that all workers share. Return False if it is used up for now."""
    seconds = size * 3600 / (settings.ATHANOR.scrub_gib_per_hour * 2**30)
    ScrubBudget.objects.get_or_create(pk=1, defaults={"spent_until": timezone.now() - UNSPENT_FOR})
    unspent = ScrubBudget.objects.filter(pk=1, spent_until__lte=Now())
    begin = Greatest(F("spent_until"), Now() - UNSPENT_FOR)
    return unspent.update(spent_until=begin + timedelta(seconds=seconds)) == 1


def _mark_damaged(row: Checkpoint, lease: Lease, because: str) -> Outcome:
    """Mark a checkpoint, unless it was retired or deleted while it was read: then its objects may be gone."""
    with transaction.atomic():
        job = Job.objects.select_for_update(no_key=True).get(pk=row.job_id)
        current = _held(lease).filter(OF_A_TEAM).select_for_update(no_key=True, of=("self",)).first()
        if current is None:
            return Outcome.LOST
        checkpoint_states.set_damaged(job, current, because, actor=ACTOR)
        leases.release(Checkpoint, lease)
    log.warning("%s of %s is damaged: %s", row.pk, row.job_id, because)
    return Outcome.DAMAGED
