"""Preflights of a job's attempts, read from their events."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from athanor.jobs.models import Attempt, Job, JobEvent
from trainer.contract.events import PREFLIGHT_COMPLETED
from trainer.contract.preflight import PreflightReport


@dataclass(frozen=True)
class StoredPreflight:
    """The report of an attempt's preflight. `attempt`: its number."""

    attempt: int
    time: datetime
    report: PreflightReport


def preflights_of(job: Job) -> list[StoredPreflight]:
    """Return the preflights of a job, the newest first."""
    numbers = dict(Attempt.objects.filter(job=job).values_list("id", "number"))
    found = []
    for event in JobEvent.objects.filter(job=job, type=PREFLIGHT_COMPLETED).order_by("-seq"):
        report = read_report(event.data)
        if report is not None and event.actor in numbers:
            found.append(StoredPreflight(numbers[event.actor], event.time, report))
    return found


def read_report(data: Mapping[str, Any]) -> PreflightReport | None:
    """Return the report of an event, None if an agent has sent something else."""
    try:
        return PreflightReport.model_validate(data.get("report"))
    except ValidationError:
        return None
