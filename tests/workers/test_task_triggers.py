"""Messages that start tasks early: only after a commit, one at a time, and none is needed."""

import uuid
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as ValkeyGone

from athanor.accounts.models import Team
from athanor.core import task_triggers
from athanor.core.valkey import valkey
from workers import tasks

pytestmark = pytest.mark.django_db(transaction=True)
ADMIT, DISPATCH = task_triggers.ADMIT, task_triggers.DISPATCH


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> str:
    """Other tests use the same Valkey, some of them at the same time."""
    prefix = f"test:{uuid.uuid4()}"
    monkeypatch.setattr("athanor.core.task_triggers._key", lambda what, task: f"{prefix}:{what}:{task}")
    return prefix


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr("athanor.core.task_triggers.current_app.send_task", lambda name, **_: found.append(name))
    return found


def refuse(error: Exception) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("athanor.core.task_triggers.current_app.send_task", OperationalError("connection refused")),
        ("athanor.core.task_triggers.valkey", ValkeyGone("connection refused")),
    ],
)
def test_a_commit_survives_an_unreachable_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str, error: Exception
) -> None:
    monkeypatch.setattr(part, refuse(error))
    with transaction.atomic():
        Team.objects.create(name="green")
        task_triggers.trigger_after_commit(ADMIT)
    assert Team.objects.filter(name="green").exists()
    assert "left to its periodic run" in caplog.text


def test_a_message_is_sent_only_after_the_commit(sent: list[str]) -> None:
    with transaction.atomic():
        task_triggers.trigger_after_commit(ADMIT)
        assert sent == []
    assert sent == [ADMIT]
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        task_triggers.trigger_after_commit(ADMIT)
        1 / 0  # noqa: B018 - any error rolls back
    assert sent == [ADMIT]


def test_no_second_message_is_sent_while_one_waits(sent: list[str], keys: str) -> None:
    for _ in range(3):
        task_triggers.trigger_after_commit(ADMIT)
        task_triggers.trigger_after_commit(DISPATCH)
    assert sent == [ADMIT, DISPATCH]
    assert 0 < valkey().ttl(f"{keys}:pending:{ADMIT}") <= task_triggers.PENDING_SECONDS


def test_what_is_committed_during_a_run_starts_another(sent: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def commit_during_the_run() -> int:
        task_triggers.trigger_after_commit(ADMIT)
        return 0

    monkeypatch.setattr("athanor.scheduling.services.admit", commit_during_the_run)
    task_triggers.trigger_after_commit(ADMIT)
    tasks.admit()
    assert sent == [ADMIT, ADMIT]


@pytest.mark.parametrize(("task", "factor"), [(DISPATCH, 3), (ADMIT, 9)])
def test_after_a_long_run_the_next_waits_for_a_multiple_of_it(
    monkeypatch: pytest.MonkeyPatch, task: str, factor: int
) -> None:
    countdowns: list[float | None] = []
    times = iter([100.0, 100.2])
    monkeypatch.setattr(
        "athanor.core.task_triggers.current_app.send_task",
        lambda name, *, countdown, **_: countdowns.append(countdown),
    )
    task_triggers.trigger_after_commit(task)
    with monkeypatch.context() as clock:
        clock.setattr("athanor.core.task_triggers.time", SimpleNamespace(monotonic=lambda: next(times)))
        with task_triggers.run_of(task):
            pass
    task_triggers.trigger_after_commit(task)
    first, second = countdowns
    assert first is None
    assert second is not None
    assert 0.2 < second <= 0.2 * factor
