"""A broker that is not reachable adds latency and loses nothing."""

import pytest
from django.db import transaction
from kombu.exceptions import OperationalError

from athanor.accounts.models import Team
from athanor.core import task_triggers


@pytest.mark.django_db(transaction=True)
def test_a_commit_survives_an_unreachable_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("athanor.core.task_triggers.current_app.send_task", refuse)
    with transaction.atomic():
        Team.objects.create(name="green")
        task_triggers.trigger_after_commit(task_triggers.ADMIT)
    assert Team.objects.filter(name="green").exists()
    assert "left to its periodic run" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_message_is_sent_only_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr("athanor.core.task_triggers.current_app.send_task", lambda name, **_: sent.append(name))
    with transaction.atomic():
        task_triggers.trigger_after_commit(task_triggers.ADMIT)
        assert sent == []
    assert sent == [task_triggers.ADMIT]
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        task_triggers.trigger_after_commit(task_triggers.ADMIT)
        1 / 0  # noqa: B018 - any error rolls back
    assert sent == [task_triggers.ADMIT]
