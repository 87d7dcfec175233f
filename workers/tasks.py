"""Celery tasks. Each processes all work that is due; unknown arguments never break a rolling upgrade."""

from collections.abc import Callable
from typing import Any

from celery import shared_task

from athanor.accounts import idempotency, sign_on_checks
from athanor.artifacts import deletions, unreferenced
from athanor.artifacts import services as artifacts
from athanor.budgets import rounds, series_fetch
from athanor.compliance import audit_anchors, erasure
from athanor.core import wakeups
from athanor.dispatch import finalise, observe, stop, submit
from athanor.fleet import inventory_sync
from athanor.reconcilers.backlog import recorded
from athanor.scheduling import estimates, simulations
from athanor.scheduling import services as scheduling
from athanor.telemetry import folding, retention
from athanor.webhooks import delivering
from athanor.webhooks import publishing as webhooks


def reconciler(task: str) -> Callable[[Callable[[], None]], Any]:
    """Register the periodic task `task`, whose runs are recorded for the operations page."""

    def register(work: Callable[[], None]) -> Any:
        def run(**_: Any) -> None:
            with recorded(task):
                work()

        return shared_task(name=task)(run)

    return register


@reconciler(wakeups.ADMIT)
def admit() -> None:
    if scheduling.admit():
        submit.prepare_due()
        submit.submit_due()


@reconciler(wakeups.ESTIMATE)
def estimate() -> None:
    estimates.estimate_due()


@reconciler(wakeups.DISPATCH)
def dispatch() -> None:
    submit.prepare_due()
    submit.submit_due()
    stop.stop_due()


@reconciler(wakeups.OBSERVE)
def watch() -> None:
    observe.observe_due()
    stop.stop_due()


@reconciler(wakeups.FINALISE)
def finish() -> None:
    finalise.finalise_due()


@reconciler(wakeups.PUBLISH)
def publish() -> None:
    webhooks.publish_due()


@reconciler(wakeups.DELIVER)
def deliver() -> None:
    delivering.deliver_due()


@reconciler(wakeups.METER)
def meter() -> None:
    rounds.carry_on()
    series_fetch.fetch_due()


@reconciler(wakeups.SWEEP_STORAGE)
def sweep_storage() -> None:
    artifacts.sweep_retired()
    deletions.purge_due()


@reconciler(wakeups.SWEEP_UNREFERENCED)
def sweep_unreferenced() -> None:
    unreferenced.sweep()


@reconciler(wakeups.CHECK_SIGN_ONS)
def check_sign_ons() -> None:
    sign_on_checks.run_due()


@reconciler(wakeups.ERASE_TEAMS)
def erase_teams() -> None:
    erasure.run_due()


@reconciler(wakeups.FOLD_TELEMETRY)
def fold_telemetry() -> None:
    folding.fold_due()


@reconciler(wakeups.SWEEP_TELEMETRY)
def sweep_telemetry() -> None:
    retention.sweep()
    idempotency.sweep()


@reconciler(wakeups.ANCHOR_AUDIT)
def anchor_audit() -> None:
    audit_anchors.write()


@reconciler(wakeups.SIMULATE)
def simulate() -> None:
    simulations.run_due()


@reconciler(wakeups.SURVEY)
def survey() -> None:
    inventory_sync.survey_due()
