"""Every task trigger has a task, and every task a reconciler."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from athanor.config.celery import app
from athanor.core import task_triggers
from athanor.reconcilers.backlog import DUE
from athanor.reconcilers.registry import RECONCILERS
from workers import beat, tasks

REPOSITORY = Path(__file__).resolve().parents[2]
HINTS = {value for name, value in vars(task_triggers).items() if name.isupper() and isinstance(value, str)}


def test_every_trigger_has_a_task_and_a_reconciler() -> None:
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


def test_every_reconciler_has_a_query_of_what_is_due() -> None:
    assert set(DUE) == {reconciler.task for reconciler in RECONCILERS}


def test_messages_of_a_reconciler_expire_but_not_for_clocks_that_differ_a_little() -> None:
    for entry in beat.SCHEDULE.values():
        assert beat.CLOCKS_DIFFER_SECONDS <= entry["options"]["expires"] <= max(entry["schedule"], 60)


def test_a_broker_that_is_away_is_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by `make chaos` (seed 12): 13 s passed until a worker noticed that Valkey was back."""
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _: None)
    pauses: list[float] = []
    with app.connection_for_read("redis://127.0.0.1:1/0") as connection, pytest.raises(OperationalError):
        connection.ensure_connection(lambda _, pause: pauses.append(pause), 20)
    assert len(pauses) >= 20
    assert max(pauses) <= 2


def test_tasks_stay_thin() -> None:
    tree = ast.parse(Path(tasks.__file__).read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 15, node.name
