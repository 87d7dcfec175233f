"""Stored admission cycles, and their replay: the same snapshot must give the same decisions."""

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import zstandard
from django.conf import settings
from django.db.models import Q, QuerySet
from pydantic import TypeAdapter

from athanor.core.errors import Gone, NotFound
from athanor.scheduling.models import AdmissionCycle
from athanor.scheduling.policy.cycle import decide
from athanor.scheduling.policy.snapshot import Decision, Snapshot

MAX_CYCLES = 20_000
_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)
_DECISIONS: TypeAdapter[list[Decision]] = TypeAdapter(list[Decision])


def store(snapshot: Snapshot, decisions: Sequence[Decision], seconds: float) -> AdmissionCycle:
    """Store a cycle. `seconds`: how long the decision took."""
    content = _SNAPSHOT.dump_json(snapshot)
    return AdmissionCycle.objects.create(
        digest=hashlib.sha256(content).hexdigest(),
        snapshot=zstandard.compress(content),
        decisions=zstandard.compress(_DECISIONS.dump_json(list(decisions))),
        considered=len(decisions),
        admitted=[decision.job_id for decision in decisions if decision.admitted],
        preempted=[victim for decision in decisions for victim in decision.victims],
        seconds=seconds,
    )


def stored(cycle: AdmissionCycle) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return snapshot and decisions as plain data."""
    return (
        json.loads(zstandard.decompress(bytes(cycle.snapshot))),
        json.loads(zstandard.decompress(bytes(cycle.decisions))),
    )


def snapshot_of(cycle: AdmissionCycle) -> Snapshot:
    """Return the snapshot of a cycle. Raises ValueError if it does not match its digest."""
    content = zstandard.decompress(bytes(cycle.snapshot))
    if hashlib.sha256(content).hexdigest() != cycle.digest:
        raise ValueError(f"the snapshot of cycle {cycle.pk} was changed after it was stored")
    return _SNAPSHOT.validate_json(content)


def differences(cycle: AdmissionCycle) -> list[str]:
    """Replay a cycle and return the ids of jobs with another decision; empty while the policy is unchanged."""
    then = {row["job_id"]: row for row in stored(cycle)[1]}
    again = json.loads(_DECISIONS.dump_json(decide(snapshot_of(cycle))))
    now = {row["job_id"]: row for row in again}
    return sorted(job_id for job_id in then.keys() | now.keys() if then.get(job_id) != now.get(job_id))


def is_expired(now: datetime) -> Q:
    """Return the condition of cycles beyond the retention time or the maximum number; compliance/retention.py removes
    them."""
    newest = AdmissionCycle.objects.order_by("-id").values_list("id", flat=True)
    last = next(iter(newest[MAX_CYCLES : MAX_CYCLES + 1]), 0)
    days = settings.ATHANOR.decisions_days
    return Q(id__lte=last) | Q(time__lt=now - timedelta(days=days)) if days else Q(id__lte=last)


def cycles() -> QuerySet[AdmissionCycle]:
    """Return the stored admission cycles without their snapshots and decisions."""
    return AdmissionCycle.objects.defer("snapshot", "decisions")


def cycle_of(cycle_id: int) -> AdmissionCycle:
    """Return a stored admission cycle. Raises NotFound, and Gone for one that was removed after its retention."""
    cycle = AdmissionCycle.objects.filter(pk=cycle_id).first()
    if cycle is None and cycle_id > 0 and AdmissionCycle.objects.filter(pk__gt=cycle_id).exists():
        raise Gone(
            "decision_expired",
            f"decision {cycle_id} is no longer stored: ATHANOR_DECISIONS_DAYS is {settings.ATHANOR.decisions_days}, "
            f"and at most the newest {MAX_CYCLES} are stored",
            remedy="to store later ones for longer, raise ATHANOR_DECISIONS_DAYS",
        )
    if cycle is None:
        raise NotFound("decision", str(cycle_id))
    return cycle
