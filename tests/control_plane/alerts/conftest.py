"""Rules, and running jobs that report series, for tests of alerts."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.alerts import services
from athanor.alerts.models import AlertRule
from athanor.jobs.models import Attempt, Job
from athanor.telemetry import ingest
from tests.control_plane import drive
from trainer.contract.run import Batch, MetricPoint

MFU = "throughput/mfu_causal"


class Run:
    """A running job: what its agent reports."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.attempt: Attempt = drive.run(job)
        self._sequence = self._step = 0

    def report(self, *values: float, name: str = MFU, at: datetime | None = None) -> None:
        """Report a series at the next steps, in one batch."""
        points = []
        for value in values:
            self._step += 1
            time = at or timezone.now()
            points.append(MetricPoint(step=self._step, time=time, values={name: value, "time/step_seconds": 1.0}))
        ingest.ingest(self.attempt, "metrics", Batch(writer="w", sequence=self._sequence, points=points))
        self._sequence += 1


@pytest.fixture
def running(submit: Callable[..., Job]) -> Callable[..., Run]:
    return lambda **changes: Run(submit(**changes))


@pytest.fixture
def make_rule(team: Team, user: User) -> Callable[..., AlertRule]:
    def make(**changes: Any) -> AlertRule:
        facts = {"name": "low MFU", "measure": "series_below", "series": MFU, "threshold": 0.28, **changes}
        if not facts["measure"].startswith("series"):
            facts["series"] = ""
        return services.create(team, user, **facts)

    return make


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)
