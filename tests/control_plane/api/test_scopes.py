"""A token has only those scopes of its user's platform role that it was given."""

from collections.abc import Callable
from typing import Any

import pytest

from athanor.accounts.models import Team, User
from athanor.accounts.roles import PLATFORM_SCOPES, PlatformRole, Scope, includes
from athanor.accounts.services import issue_token
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
# One request for each part that only it allows; the answer without it is 403 or 404.
REQUESTS: dict[str, tuple[str, str, Any]] = {
    "clusters": ("GET", "clusters:kinds", None),
    "quotas": ("PUT", "quotas/settings", {}),
    "budgets": ("POST", "series", {"kind": "price"}),
    "people": ("POST", "teams", {"name": ""}),
}


@pytest.fixture
def with_scopes(make_user: Callable[..., User], team: Team) -> Callable[..., Api]:
    user = make_user("root", team)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)

    def make(*scopes: Scope) -> Api:
        client = Api()
        secret = issue_token(user, team, "t", scopes=[Scope.READ, *scopes])[1]
        client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
        return client

    return make


@pytest.mark.parametrize("part", ["clusters", "quotas", "budgets", "people", "audit"])
def test_a_part_opens_its_own_and_nothing_else(with_scopes: Callable[..., Api], part: str) -> None:
    api = with_scopes(Scope(f"platform:{part}"))
    for name, (method, path, body) in REQUESTS.items():
        answer = api.send(method, path, body)
        assert (answer.status_code == 403) == (name != part), (name, answer.status_code, answer.content)
        if name != part:
            assert f"platform:{name}" in answer.json()["remedy"], "the remedy names the scope"
    for path, parts in (("queue", None), ("simulations", {"quotas", "budgets", "audit"})):
        allowed = parts is None or part in parts
        assert (api.send("GET", path).status_code == 200) == allowed, path


def test_the_old_scope_is_all_of_them(with_scopes: Callable[..., Api]) -> None:
    old, none = with_scopes(Scope.PLATFORM), with_scopes()
    for method, path, body in REQUESTS.values():
        assert old.send(method, path, body).status_code != 403, path
        assert none.send(method, path, body).status_code == 403, path


def test_a_token_gives_on_the_parts_that_it_has(with_scopes: Callable[..., Api]) -> None:
    for held, asked, status in (
        (Scope.PLATFORM, "platform:clusters", 201),
        (Scope.PLATFORM_CLUSTERS, "platform:clusters", 201),
        (Scope.PLATFORM_CLUSTERS, "platform:people", 403),
        (Scope.PLATFORM_CLUSTERS, "platform", 403),
    ):
        answer = with_scopes(held).send("POST", "tokens", {"name": "x", "team": "red", "scopes": ["read", asked]})
        assert answer.status_code == status, (held, asked, answer.content)
    every = frozenset(PLATFORM_SCOPES - {Scope.PLATFORM})
    assert not includes(every, Scope.PLATFORM), "a part added later is not given with what was held before"
    assert not includes(frozenset({Scope.PLATFORM}), Scope.ADMIN)
