"""The Celery application of workers and beat: `celery -A athanor.config.celery worker`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "athanor.config.settings")

app = Celery("athanor")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.conf.imports = ("workers.tasks",)
app.set_default()


@app.on_after_configure.connect
def _schedule(sender: Celery, **_: object) -> None:
    from workers import beat  # noqa: PLC0415 - Django is ready only now

    sender.conf.beat_schedule = beat.SCHEDULE
