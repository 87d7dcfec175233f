"""A broker that is away costs latency and nothing else."""

import pytest
from django.db import transaction
from kombu.exceptions import OperationalError

from athanor.accounts.models import Team
from athanor.core import wakeups


@pytest.mark.django_db(transaction=True)
def test_a_commit_survives_a_broker_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("athanor.core.wakeups.current_app.send_task", away)
    with transaction.atomic():
        Team.objects.create(name="green")
        wakeups.hint_after_commit(wakeups.ADMIT)
    assert Team.objects.filter(name="green").exists()
    assert "left to its reconciler" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_hint_is_sent_only_after_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr("athanor.core.wakeups.current_app.send_task", lambda name, **_: sent.append(name))
    with transaction.atomic():
        wakeups.hint_after_commit(wakeups.ADMIT)
        assert sent == []
    assert sent == [wakeups.ADMIT]
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        wakeups.hint_after_commit(wakeups.ADMIT)
        1 / 0  # noqa: B018 - any error rolls back
    assert sent == [wakeups.ADMIT]
