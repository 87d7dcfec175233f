"""The Celery app of workers and beat: `celery -A athanor.config.celery worker`."""

import os
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.signals import worker_ready
from kombu import Connection

from athanor.core.service_notify import ALIVE, READY, interval_seconds, notify

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "athanor.config.settings")

RETRY_SECONDS = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}


class Broker(Connection):
    """Reconnects to a lost broker every other second; Kombu's own pauses grow to half a minute."""

    def ensure_connection(
        self, errback: Callable[[Exception, float], None] | None = None, *args: Any, **kw: Any
    ) -> Any:
        """Connect with these pauses."""

        def on_error(error: Exception, interval: float) -> None:
            if threading.current_thread() is threading.main_thread():
                notify(ALIVE)  # a worker that waits for its broker is not hung
            if errback is not None:
                errback(error, interval)

        return super().ensure_connection(on_error, *args, **{**RETRY_SECONDS, **kw})


class Amqp(AMQP):
    """Uses these connections."""

    Connection = Broker


app = Celery("athanor", amqp=Amqp)
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.imports = ("workers.tasks",)
app.set_default()


@app.on_after_configure.connect
def _schedule(sender: Celery, **_: object) -> None:
    from workers import beat  # noqa: PLC0415 - Django is ready only now

    sender.conf.beat_schedule = beat.SCHEDULE


@worker_ready.connect
def _notify_from_event_loop(sender: Any, **_: object) -> None:
    """Report that the worker is ready, and from its event loop that it is alive."""
    notify(READY, ALIVE)
    sender.timer.call_repeatedly(interval_seconds(), notify, (ALIVE,))
