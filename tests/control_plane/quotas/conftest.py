"""A signed-in platform administrator, and a tree to change."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import Team, User
from athanor.clusters.models import Cluster, Pool
from tests.control_plane.conftest import Api


@pytest.fixture
def boss(make_user: Callable[..., User], other_team: Team) -> User:
    user = make_user("boss", other_team)
    user.platform_role = "platform_admin"
    user.save()
    return user


@pytest.fixture
def admin(boss: User) -> Api:
    client = Api()
    client.force_login(boss)
    return client


@pytest.fixture
def accelerators(db: None) -> None:
    """A disabled cluster with pools of cpu and h100, so that grants can name them; it provides no slots."""
    cluster = Cluster.objects.create(name="planned", kind="fake", enabled=False)
    for name in ("cpu", "h100"):
        Pool.objects.create(cluster=cluster, name=name, accelerator=name, slots_per_node=8, memory_bytes=1)


@pytest.fixture
def change(admin: Api, accelerators: None) -> Callable[..., Any]:
    """Change the tree over the API and return its nodes by path."""

    def make(*wishes: dict[str, Any]) -> dict[str, Any]:
        answer = admin.send("PATCH", "quotas", {"changes": list(wishes)})
        assert answer.status_code == 200, answer.content
        return {node["path"]: node for node in answer.json()["nodes"]}

    return make
