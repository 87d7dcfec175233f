"""No request causes a 500, and every response conforms to the OpenAPI document (schemathesis).

Bodies, as JSON and as YAML, and query parameters are held against the document both ways: what it does not allow is
refused, and what it allows is not called malformed.
"""

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
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from athanor.accounts.models import Team, User
from athanor.accounts.roles import PlatformRole, Role, Scope
from athanor.accounts.services import issue_token
from deploy.local import checks
from tests.control_plane.conftest import rolled_back
from tests.examples import examples

pytestmark = pytest.mark.django_db

DOCUMENT = json.loads(checks.OPENAPI_DOCUMENT.read_text())
schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SETTINGS = hypothesis_settings(
    max_examples=examples(15),
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
MALFORMED = {400, 415, 422}
# PostgreSQL stores no NUL, which no schema needs to say; invalid_text is the answer to one.
SCHEMA.config.generation.allow_x00 = False


def is_limited(parameter: dict[str, Any]) -> bool:
    """Whether there are values that the document does not allow for a query parameter."""
    return parameter["in"] == "query" and (parameter["schema"].keys() != {"type"} or parameter.get("required", False))


WITH_INPUT = [
    name
    for name, operation in OPERATIONS.items()
    if operation.body or any(is_limited(each) for each in operation.definition.raw.get("parameters", []))
]
# Refusals of bodies that the document allows: by facts, or by rules between fields, which a schema cannot say.
# For each operation the codes of its problems, or the beginnings of their pointers.
TREE = {  # rules of the whole tree: athanor/quotas/changes.py
    "below_a_team", "either_or", "group_not_empty", "invalid_name", "leaf_of_a_team", "lends_too_much", "name_is_fixed",
    "name_taken", "team_twice", "too_deep", "top_of_the_tree", "two_names", "unknown_accelerator", "unknown_node",
    "unknown_team",
}  # fmt: skip
SUBMISSION = {  # rules between fields; what a spec names; what its pool has
    "value_error", "unknown_team", "unknown_job", "unknown_secret", "dataset_missing", "bucket_not_allowed",
    "dataset_empty", "no_text_field", "base_not_found", "unknown_cluster", "cluster_disabled", "unknown_accelerator",
    "address_not_allowed", "destination_not_allowed", "does_not_fit", "too_many_nodes", "too_much_memory",
    "too_many_processes", "no_use_for_spares", "wrong_mesh", "too_few_sequences",
    "not_fewer_nodes", "does_not_train", "set_by_the_platform",
}  # fmt: skip
RULES_OF_ALERTS = {"required", "not_used", "side"}  # what each measure needs
REFUSALS: dict[str, set[str]] = {
    "alert_rules_change": RULES_OF_ALERTS,
    "alert_rules_create": RULES_OF_ALERTS | {"unknown_team"},
    "budgets_create": {"unknown", "required"},  # a node of the tree; a currency for money
    "budgets_statement": {"period"},  # the times in which the budget had one
    "budgets_export": {"period"},
    "clusters_change": {"/config"},  # the fields of its kind: GET /clusters:kinds
    "clusters_check": {"/kind", "/config"},
    "clusters_create": {"/kind", "/config"},
    "costs_export": {"/after", "/by"},  # `after` before `before`; each name once
    "costs_report": {"/after", "/by"},
    "datasets_list": {"unknown_field"},
    "events_list": {"cursor", "unknown_team"},
    "goodput_statement": {"/after", "unknown_team"},
    "jobs_list": {"unknown_field", "cursor"},  # an item of the list
    "jobs_plan": SUBMISSION,
    "jobs_submit": SUBMISSION,
    "metrics_query": {"choice"},  # either jobs or filters
    "lineage_show": {"unknown_kind"},  # an id that begins as those of its nodes do
    "models_alias_set": {"unknown_version", "invalid_requirement"},
    "models_create": {"unknown_team", "required"},  # with an alias, either an artifact or a job
    "models_register": {"required"},  # either an artifact or a job
    "notification_preferences_change": {"zone", "quiet_hours"},  # names of time zones; both ends
    "pools_put": {"required", "too_many_spare_nodes"},  # of a new one; less than its nodes
    "prices_change": {"zone"},  # names of time zones
    "projects_list": {"unknown_field"},
    "projects_create": {"unknown_team"},
    "quotas_change": TREE,
    "quotas_declare": TREE,
    "quotas_preview": TREE,
    "secrets_change": {"destination"},  # which addresses are public
    "secrets_put": {"destination"},
    "series_connect": {"url"},
    "service_accounts_token": {"too_long"},  # a setting: ATHANOR_TOKEN_MAX_DAYS
    "simulations_create": TREE | {"value_error"},
    "tokens_create": {"too_long", "unknown_team"},
    "webhooks_change": {"url"},
    "webhooks_create": {"url", "unknown_team"},
}
# Of a text with units, such as `2h`, no schema can say the limits: only that of the number beside it does.
LIMITS_OF_TEXTS = {"int_from_float", "less_than_equal", "greater_than_equal", "greater_than"}
# A merge patch is right or wrong by what it is applied to; the content of a file has no schema.
NO_SCHEMA = {"jobs_fork", "datasets_inspect", "datasets_upload", "models_import", "series_upload"}


@pytest.fixture
def server() -> Iterator[Any]:
    """The WSGI application inside the test's transaction: as Django's own test client does, connections stay open."""
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(close_old_connections)
    yield get_wsgi_application()
    request_started.connect(close_old_connections)
    request_finished.connect(close_old_connections)


@pytest.fixture
def headers(team: Team, make_user: Callable[..., User]) -> dict[str, str]:
    """Authorization of a platform administrator who is also the team's, with every scope."""
    user = make_user("fuzz", team, Role.ADMIN)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    return {"Authorization": f"Bearer {issue_token(user, team, 'fuzz', scopes=list(Scope))[1]}"}


def test_every_answer_is_as_documented(
    foreign: dict[str, str], headers: dict[str, str], server: Any, subtests: pytest.Subtests
) -> None:
    def fuzz(operation: schemathesis.APIOperation) -> None:
        @SETTINGS
        @given(case=operation.as_strategy(), real=st.booleans())
        def one(case: schemathesis.Case, real: bool) -> None:
            if real:
                case.path_parameters = {n: foreign.get(n, v) for n, v in (case.path_parameters or {}).items()}
            case.call_and_validate(app=server, base_url="http://localhost", headers=headers, checks=CHECKS)

        one()

    for name, operation in OPERATIONS.items():
        with subtests.test(name), rolled_back():
            fuzz(operation)


@pytest.fixture
def fuzz(foreign: dict[str, str], headers: dict[str, str], server: Any) -> Callable[..., None]:
    """Send bodies of one mode to an operation on existing objects, and pass each response to `check`."""

    def send(name: str, mode: GenerationMode, check: Callable[[schemathesis.Case, Any], None]) -> None:
        operation = OPERATIONS[name]
        addresses = {each.name: foreign.get(each.name, "1") for each in operation.path_parameters}

        @SETTINGS
        @given(case=operation.as_strategy(mode, path_parameters=addresses, headers=headers))
        def one(case: schemathesis.Case) -> None:
            check(case, case.call(app=server, base_url="http://localhost", headers=headers))

        one()

    return send


@pytest.mark.slow
def test_what_the_document_does_not_allow_is_refused(fuzz: Callable[..., None], subtests: pytest.Subtests) -> None:
    def check(case: schemathesis.Case, response: Any) -> None:
        case.validate_response(response, checks=[*CHECKS, negative_data_rejection])

    for name in WITH_INPUT:
        with subtests.test(name), rolled_back():
            fuzz(name, GenerationMode.NEGATIVE, check)


def check_is_not_malformed(case: schemathesis.Case, response: Any) -> None:
    """Refuse an answer that calls a documented body malformed, but for the operation's own REFUSALS."""
    case.validate_response(response, checks=CHECKS)
    identifier = case.operation.definition.raw["operationId"]
    # Generated keys are few: another body has had the same one.
    expected = REFUSALS.get(identifier, set()) | {"idempotency_key_reused"}

    def is_expected(problem: dict[str, str]) -> bool:
        pointer = problem.get("pointer", "")
        if problem["code"] in LIMITS_OF_TEXTS and "; got '" in problem["detail"]:
            return True
        return problem["code"] in expected or any(each[0] == "/" and pointer.startswith(each) for each in expected)

    if response.status_code in MALFORMED and identifier not in NO_SCHEMA:
        answer = response.json()
        unexpected = [each for each in answer.get("errors") or [answer] if not is_expected(each)]
        assert not unexpected, (case.query, case.media_type, case.body)


def test_what_the_document_allows_is_not_called_malformed(fuzz: Callable[..., None], subtests: pytest.Subtests) -> None:
    for name in WITH_INPUT:
        with subtests.test(name), rolled_back():
            fuzz(name, GenerationMode.POSITIVE, check_is_not_malformed)


def test_yaml_bodies_are_sent_too() -> None:
    both = {"application/json", "application/yaml"}
    assert {"POST /api/v1/jobs", "POST /api/v1/simulations"} <= {
        name for name, operation in OPERATIONS.items() if both <= {body.media_type for body in operation.body}
    }
