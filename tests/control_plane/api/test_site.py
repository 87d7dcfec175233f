"""Health, unknown addresses, and the published documents."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from athanor.specs.v1 import JobSpec
from deploy.local import checks

pytestmark = pytest.mark.django_db
REPOSITORY = Path(__file__).resolve().parents[3]


def test_health_and_readiness(bucket: str) -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}
    ready = Client().get("/readyz")
    assert ready.status_code == 200, ready.content
    assert ready.json()["checks"] == {"database": "ok", "object_store": "ok", "broker": "ok"}


def test_an_unknown_address_of_the_api_is_a_problem() -> None:
    answer = Client().get("/api/v1/nothing")
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


def test_a_body_that_is_no_json_is_a_problem(api: Any) -> None:
    answer = api.generic("POST", "/api/v1/jobs", "{", content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "parse_error")


def test_an_unknown_media_type_is_a_problem(api: Any) -> None:
    answer = api.generic("POST", "/api/v1/jobs", "x", content_type="application/pdf")
    assert answer.status_code == 415


def test_the_specs_schema_is_published() -> None:
    assert Client().get("/api/v1/spec/schema").json() == json.loads(json.dumps(JobSpec.model_json_schema()))


def test_the_python_types_are_those_of_the_document(tmp_path: Path) -> None:
    made = tmp_path / "schema_gen.py"
    subprocess.run(checks.python_types(made), check=True, cwd=REPOSITORY)
    assert made.read_text() == (REPOSITORY / "platform" / "athanor" / "cli" / "schema_gen.py").read_text(), (
        "the API has changed: run `make gen`"
    )


def test_the_committed_openapi_document_is_current(tmp_path: Path) -> None:
    made = tmp_path / "openapi.json"
    call_command("spectacular", "--format", "openapi-json", "--file", str(made), "--validate")
    assert json.loads(made.read_text()) == json.loads((REPOSITORY / "frontend" / "openapi.json").read_text()), (
        "the API has changed: run `make gen`"
    )


def test_the_document_and_its_page_are_served() -> None:
    assert Client().get("/api/schema/").status_code == 200
    assert b"swagger" in Client().get("/api/docs/").content


def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", "--check", "--dry-run")


def test_presets_say_where_they_fit(api: Any, pool: Any) -> None:
    items = {item["name"]: item for item in api.send("GET", "presets").json()["items"]}
    assert items["demo"]["fits"] == {"fake": True}
    assert items["llama-8b"]["fits"] == {"fake": False}
    assert api.send("GET", "clusters").json()["items"][0]["pools"][0]["slots"] == 8
