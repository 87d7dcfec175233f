"""People, teams, clusters and specs for the tests of the control plane, on real PostgreSQL and a real object store."""

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from rest_framework.test import APIClient

from athanor.accounts.models import Membership, Role, Team, User
from athanor.accounts.services import issue_token
from athanor.artifacts import datasets, storage
from athanor.backends.fake.backend import WORLDS, World
from athanor.clusters.models import Cluster, Pool
from athanor.core import valkey
from athanor.jobs import services
from athanor.jobs.models import Job
from athanor.specs.validation import parse_spec
from tests.control_plane import roles

SPEC: dict[str, Any] = {
    "version": 1,
    "name": "tiny",
    "resources": {"processes_per_node": 1, "cluster": "fake"},
    "training": {
        "model": {"preset": "llama-1m"},
        "data": {"source": "builtin:python-stdlib"},
        "steps": 10,
        "tokens_per_step": 512,
        "sequence_length": 64,
        "schedule": {"warmup_steps": 2},
    },
}


@pytest.fixture(scope="session", autouse=True)
def patient_throttle() -> Iterator[None]:
    """Requests are counted however slow the machine is: the server gives Valkey a fifth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(valkey, "TIMEOUT_SECONDS", 20.0)
        yield


@pytest.fixture(autouse=True)
def runtime_role(request: pytest.FixtureRequest, _django_db_marker: None) -> None:
    """Run the test as the database role of web and workers, which owns no table, to the end of its transaction.

    Tests of many transactions (`transaction=True`) run as the tables' owner, who alone may empty them afterwards.
    """
    marker = request.node.get_closest_marker("django_db")
    if "db" not in request.fixturenames and marker is None:
        return
    if "transactional_db" in request.fixturenames or (marker is not None and marker.kwargs.get("transaction")):
        return
    request.getfixturevalue("db")
    roles.become_runtime()


@contextmanager
def rolled_back() -> Iterator[None]:
    """Undo at the end what is written inside: many cases of one test then share the rows made before."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture
def spec() -> dict[str, Any]:
    return copy.deepcopy(SPEC)


@pytest.fixture
def world(db: None) -> Iterator[World]:
    """The fake backend of cluster `fake`, which has eight slots."""
    name = uuid.uuid4().hex
    cluster = Cluster.objects.create(name="fake", kind="fake", config={"world": name})
    Pool.objects.create(cluster=cluster, name="cpu", slots_per_node=8, memory_bytes=64 * 2**30)
    yield WORLDS.setdefault(name, World())
    del WORLDS[name]


@pytest.fixture
def pool(world: World) -> Pool:
    return Pool.objects.get(cluster__name="fake")


@pytest.fixture
def team(db: None) -> Team:
    return Team.objects.create(name="red")


@pytest.fixture
def other_team(db: None) -> Team:
    return Team.objects.create(name="blue")


@pytest.fixture
def make_user(db: None) -> Callable[..., User]:
    def make(name: str, team: Team, role: str = Role.MEMBER) -> User:
        user = User.objects.create(username=name)
        Membership.objects.create(user=user, team=team, role=role)
        return user

    return make


@pytest.fixture
def user(make_user: Callable[..., User], team: Team) -> User:
    return make_user("ada", team)


class Api(APIClient):
    """A client that sends JSON and returns decoded responses."""

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        extra = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        data = None if body is None else json.dumps(body)
        return self.generic(method, f"/api/v1/{path}", data or "", content_type="application/json", **extra)


@pytest.fixture
def api_of() -> Callable[[User, Team], Api]:
    def make(user: User, team: Team) -> Api:
        client = Api()
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {issue_token(user, team, 'test')[1]}")
        return client

    return make


@pytest.fixture
def api(api_of: Callable[[User, Team], Api], user: User, team: Team) -> Api:
    return api_of(user, team)


@pytest.fixture
def submit(user: User, team: Team, pool: Pool, spec: dict[str, Any]) -> Callable[..., Job]:
    """Return a function that submits a job; its keyword arguments replace fields of the spec."""

    def make(**changes: Any) -> Job:
        written = {**copy.deepcopy(spec), **changes}
        parsed = parse_spec(written)
        data = datasets.resolve_all(team, parsed.data, "/training")
        submission = services.Submission(
            user=user, team=team, pool=pool, dataset_ids=[row.id for row in data], written=written, spec=parsed
        )
        return services.submit(submission).job

    return make


@pytest.fixture(scope="session")
def bucket(running_stores: None) -> str:
    storage.ensure_bucket()
    return storage.bucket()
