"""Each task carries on whatever is due, whoever left it. Unknown arguments never break a rolling upgrade."""

from typing import Any

from celery import shared_task

from athanor.artifacts import services as artifacts
from athanor.core import wakeups
from athanor.dispatch import finalise, observe, stop, submit
from athanor.scheduling import services as scheduling
from athanor.telemetry import folding, retention
from athanor.webhooks import delivering
from athanor.webhooks import publishing as webhooks


@shared_task(name=wakeups.ADMIT)
def admit(**_: Any) -> None:
    if scheduling.admit():
        submit.prepare_due()
        submit.submit_due()


@shared_task(name=wakeups.DISPATCH)
def dispatch(**_: Any) -> None:
    submit.prepare_due()
    submit.submit_due()
    stop.stop_due()


@shared_task(name=wakeups.OBSERVE)
def watch(**_: Any) -> None:
    observe.observe_due()
    stop.stop_due()


@shared_task(name=wakeups.FINALISE)
def finish(**_: Any) -> None:
    finalise.finalise_due()


@shared_task(name=wakeups.PUBLISH)
def publish(**_: Any) -> None:
    webhooks.publish_due()


@shared_task(name=wakeups.DELIVER)
def deliver(**_: Any) -> None:
    delivering.deliver_due()


@shared_task(name=wakeups.SWEEP_STORAGE)
def sweep_storage(**_: Any) -> None:
    artifacts.sweep_retired()


@shared_task(name=wakeups.FOLD_TELEMETRY)
def fold_telemetry(**_: Any) -> None:
    folding.fold_due()


@shared_task(name=wakeups.SWEEP_TELEMETRY)
def sweep_telemetry(**_: Any) -> None:
    retention.sweep()
