"""Whatever is sent, no answer is a 500 and each is as the OpenAPI document says (schemathesis)."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from athanor.accounts.models import Team, User
from athanor.accounts.roles import PlatformRole, Role, Scope
from athanor.accounts.services import issue_token
from deploy.local import checks

pytestmark = pytest.mark.django_db

DOCUMENT = json.loads(checks.OPENAPI_DOCUMENT.read_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture
def server() -> Iterator[Any]:
    """The WSGI application inside the test's transaction: as Django's own test client does, connections stay open."""
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(close_old_connections)
    yield get_wsgi_application()
    request_started.connect(close_old_connections)
    request_finished.connect(close_old_connections)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_as_documented(
    name: str, foreign: dict[str, str], team: Team, make_user: Callable[..., User], server: Any
) -> None:
    user = make_user("fuzz", team, Role.ADMIN)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    _, token = issue_token(user, team, "fuzz", scopes=list(Scope))
    operation = OPERATIONS[name]

    @hypothesis_settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(case=operation.as_strategy(), real=st.booleans())
    def fuzz(case: schemathesis.Case, real: bool) -> None:
        if real:
            case.path_parameters = {n: foreign.get(n, v) for n, v in (case.path_parameters or {}).items()}
        case.call_and_validate(
            app=server, base_url="http://localhost", headers={"Authorization": f"Bearer {token}"}, checks=CHECKS
        )

    fuzz()
