"""Every hint has a task and every task a sweeper."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from tests import stores

stores.start()

from athanor.config.celery import app  # noqa: E402
from athanor.core import wakeups  # noqa: E402
from athanor.operations.schedule import SWEEPERS  # noqa: E402
from athanor.operations.sweepers import DUE  # noqa: E402
from workers import beat, tasks  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
HINTS = {value for name, value in vars(wakeups).items() if name.isupper() and isinstance(value, str)}


def test_every_hint_has_a_task_and_a_sweeper() -> None:
    app.loader.import_default_modules()
    assert set(app.tasks) >= HINTS
    assert set(beat.SCHEDULE) == HINTS
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} == HINTS


def test_beat_knows_its_schedule_before_django_is_ready() -> None:
    """Celery swallows what goes wrong when it configures itself: beat would run, and send nothing."""
    program = "from athanor.config.celery import app; print(len(app.conf.beat_schedule))"
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'platform'}{os.pathsep}{REPOSITORY}"}
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == str(len(HINTS)), said.stderr


def test_every_sweeper_says_what_is_due() -> None:
    assert set(DUE) == {sweeper.task for sweeper in SWEEPERS}


def test_a_sweepers_message_expires_before_the_next_is_sent() -> None:
    for entry in beat.SCHEDULE.values():
        assert entry["options"]["expires"] <= entry["schedule"]


def test_tasks_stay_thin() -> None:
    tree = ast.parse(Path(tasks.__file__).read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 15, node.name
