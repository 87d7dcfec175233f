"""Decisions as they are kept, and made again from what was known: the same snapshot must give the same decisions."""

import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import zstandard
from django.utils import timezone
from pydantic import TypeAdapter

from athanor.scheduling import policy
from athanor.scheduling.models import AdmissionCycle
from athanor.scheduling.snapshot import Decision, Snapshot

KEPT_FOR = timedelta(days=30)
MOST_KEPT = 20_000
_SNAPSHOT: TypeAdapter[Snapshot] = TypeAdapter(Snapshot)
_DECISIONS: TypeAdapter[list[Decision]] = TypeAdapter(list[Decision])


def keep(snapshot: Snapshot, decisions: Sequence[Decision], seconds: float) -> AdmissionCycle:
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
    """Snapshot and decisions as plain data."""
    return (
        json.loads(zstandard.decompress(bytes(cycle.snapshot))),
        json.loads(zstandard.decompress(bytes(cycle.decisions))),
    )


def snapshot_of(cycle: AdmissionCycle) -> Snapshot:
    """What was known. Raises ValueError when it is not what its digest says."""
    content = zstandard.decompress(bytes(cycle.snapshot))
    if hashlib.sha256(content).hexdigest() != cycle.digest:
        raise ValueError(f"the snapshot of cycle {cycle.pk} was changed after it was stored")
    return _SNAPSHOT.validate_json(content)


def differences(cycle: AdmissionCycle) -> list[str]:
    """Decide again: the ids of jobs of which something else is said now. None as long as the policy is the same."""
    then = {row["job_id"]: row for row in stored(cycle)[1]}
    again = json.loads(_DECISIONS.dump_json(policy.decide(snapshot_of(cycle))))
    now = {row["job_id"]: row for row in again}
    return sorted(job_id for job_id in then.keys() | now.keys() if then.get(job_id) != now.get(job_id))


def sweep() -> None:
    """Drop what is too old, or too much."""
    AdmissionCycle.objects.filter(time__lt=timezone.now() - KEPT_FOR).delete()
    newest = AdmissionCycle.objects.order_by("-id").values_list("id", flat=True)[MOST_KEPT : MOST_KEPT + 1]
    for last in newest:
        AdmissionCycle.objects.filter(id__lte=last).delete()
