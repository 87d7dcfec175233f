"""Celery tasks. Each processes all work that is due; unknown arguments never break a rolling upgrade."""

from collections.abc import Callable
from typing import Any

from celery import shared_task
from opentelemetry.trace import SpanKind

from athanor.accounts import idempotency, sign_on_checks
from athanor.alerts import evaluating, mailing
from athanor.artifacts import deletions, imports, scrub, unreferenced
from athanor.artifacts import services as artifacts
from athanor.budgets import goodput_hours, metering_cycle, series_fetch
from athanor.compliance import audit_anchors, erasure
from athanor.compliance import retention as records
from athanor.core import task_triggers, tracing
from athanor.core.logging import bound
from athanor.dispatch import finalise, idle_guard, node_preflights, observe, replace_nodes, stop, submit
from athanor.fleet import inventory_sync
from athanor.reconcilers.backlog import recorded
from athanor.scheduling import estimates, simulations
from athanor.scheduling import services as scheduling
from athanor.telemetry import compaction, retention
from athanor.webhooks import delivering
from athanor.webhooks import publishing as webhooks


def reconciler(task: str) -> Callable[[Callable[[], None]], Any]:
    """Register the periodic task `task`, whose runs are recorded for the operations page."""

    def register(work: Callable[[], None]) -> Any:
        def run(**_: Any) -> None:
            with bound(task=task), tracing.work(task, SpanKind.CONSUMER), task_triggers.run_of(task), recorded(task):
                work()

        return shared_task(name=task)(run)

    return register


@reconciler(task_triggers.ADMIT)
def admit() -> None:
    """Admit queued jobs, and submit them to their clusters."""
    if scheduling.admit():
        submit.prepare_due()
        submit.submit_due()


@reconciler(task_triggers.ESTIMATE)
def estimate() -> None:
    """Estimate when the first jobs of each queue start."""
    estimates.estimate_due()


@reconciler(task_triggers.DISPATCH)
def dispatch() -> None:
    """Submit admitted jobs, and stop those that should not run."""
    submit.prepare_due()
    submit.submit_due()
    stop.stop_due()


@reconciler(task_triggers.OBSERVE)
def watch() -> None:
    """Observe live attempts, replace nodes that they have lost, and stop those that should not run."""
    observe.observe_due()
    replace_nodes.replace_due()
    stop.stop_due()


@reconciler(task_triggers.NODE_PREFLIGHTS)
def measure_nodes() -> None:
    """Start, observe and end the preflights of free nodes."""
    node_preflights.plan_due()
    node_preflights.advance_due()


@reconciler(task_triggers.FINALISE)
def finish() -> None:
    """End or requeue jobs with an ended attempt."""
    finalise.finalise_due()


@reconciler(task_triggers.GUARD_IDLE)
def guard_idle() -> None:
    """Warn of running jobs without progress, and pause them."""
    idle_guard.guard_due()


@reconciler(task_triggers.PUBLISH)
def publish() -> None:
    """Assign numbers to new events, and create the deliveries of webhooks."""
    webhooks.publish_due()


@reconciler(task_triggers.DELIVER)
def deliver() -> None:
    """Send due deliveries of webhooks."""
    delivering.deliver_due()


@reconciler(task_triggers.METER)
def meter() -> None:
    """Charge usage to budgets, and fetch due price series."""
    metering_cycle.run()
    series_fetch.fetch_due()


@reconciler(task_triggers.ALERT)
def alert() -> None:
    """Evaluate the alert rules of teams."""
    evaluating.evaluate_due()


@reconciler(task_triggers.SEND_MAILS)
def send_mails() -> None:
    """Mail notifications that are due."""
    mailing.send_due()


@reconciler(task_triggers.SWEEP_STORAGE)
def sweep_storage() -> None:
    """Delete objects of retired checkpoints, purged items, and imports that stopped."""
    artifacts.sweep_retired()
    deletions.purge_due()
    imports.sweep()


@reconciler(task_triggers.SWEEP_UNREFERENCED)
def sweep_unreferenced() -> None:
    """Count and delete objects that no manifest names."""
    unreferenced.sweep()


@reconciler(task_triggers.GOODPUT)
def divide_usage() -> None:
    """Divide the usage of jobs by what their slots were held for."""
    goodput_hours.count_due()


@reconciler(task_triggers.SCRUB)
def scrub_checkpoints() -> None:
    """Compare stored checkpoints with their manifests."""
    scrub.scrub()


@reconciler(task_triggers.CHECK_SIGN_ONS)
def check_sign_ons() -> None:
    """Confirm users of single sign-on with their provider."""
    sign_on_checks.run_due()


@reconciler(task_triggers.ERASE_TEAMS)
def erase_teams() -> None:
    """Erase deleted teams whose undo window is over."""
    erasure.run_due()


@reconciler(task_triggers.COMPACT_TELEMETRY)
def compact_telemetry() -> None:
    """Compact the telemetry of ended attempts."""
    compaction.compact_due()


@reconciler(task_triggers.SWEEP_TELEMETRY)
def sweep_telemetry() -> None:
    """Delete telemetry and stored answers beyond their retention."""
    retention.sweep()
    idempotency.sweep()


@reconciler(task_triggers.SWEEP_RECORDS)
def sweep_records() -> None:
    """Delete records beyond their retention."""
    records.sweep()


@reconciler(task_triggers.ANCHOR_AUDIT)
def anchor_audit() -> None:
    """Anchor the head of the audit trail."""
    audit_anchors.write()


@reconciler(task_triggers.SIMULATE)
def simulate() -> None:
    """Run requested simulations."""
    simulations.run_due()


@reconciler(task_triggers.SYNC_INVENTORY)
def sync_inventory() -> None:
    """Sync the inventory and check the health of clusters."""
    inventory_sync.sync_due()
