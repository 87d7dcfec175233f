"""The Celery app of workers and beat: `celery -A athanor.config.celery worker`."""

import os
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Connection

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "athanor.config.settings")

RETRY_SECONDS = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}


class Broker(Connection):
    """Reconnects to a lost broker every other second; Kombu's own pauses grow to half a minute."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect with these pauses."""
        return super().ensure_connection(*args, **{**RETRY_SECONDS, **kwargs})


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
