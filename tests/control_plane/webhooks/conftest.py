"""A receiver, an administrator who may create webhooks, and a function that creates one to the receiver."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from athanor.accounts.models import Team
from tests.control_plane.conftest import Api
from tests.control_plane.webhooks.receiver import Receiver


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"webhook_allow": "127.0.0.1"})
    running = Receiver()
    yield running
    running.close()


@pytest.fixture
def admin(api_of: Callable, make_user: Callable, team: Team) -> Api:
    return api_of(make_user("hal", team, "admin"), team)


@pytest.fixture
def made(admin: Api, receiver: Receiver) -> Callable[..., Any]:
    def make(**changes: Any) -> Any:
        answer = admin.send("POST", "webhooks", {"url": receiver.url, "name": "ci", **changes})
        assert answer.status_code == 201, answer.content
        return answer.json()

    return make
