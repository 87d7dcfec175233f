"""Health, unknown addresses, and the published documents."""

import json
import re
import subprocess
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from athanor.api import site
from athanor.artifacts import storage
from athanor.core.errors import Unavailable
from athanor.specs.v1 import JobSpec
from deploy.local import checks

pytestmark = pytest.mark.django_db
REPOSITORY = Path(__file__).resolve().parents[3]


def test_health_and_readiness(bucket: str) -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}
    ready = Client().get("/readyz")
    assert ready.status_code == 200, ready.content
    assert ready.json()["checks"] == dict.fromkeys(
        ("database", "object_store", "broker", "disk", "clock", "master_key"), "ok"
    )


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
    assert json.loads(made.read_text()) == json.loads(checks.OPENAPI_DOCUMENT.read_text()), (
        "the API has changed: run `make gen`"
    )


def test_the_document_and_its_page_are_served() -> None:
    answer = Client().get("/api/schema/")
    assert answer.status_code == 200
    assert answer.content == checks.OPENAPI_DOCUMENT.read_bytes()
    assert answer["Content-Type"] == "application/vnd.oai.openapi+json"
    for tags in (answer["ETag"], f'"other", {answer["ETag"]}', "*"):
        again = Client().get("/api/schema/", HTTP_IF_NONE_MATCH=tags)
        assert (again.status_code, again.content) == (304, b"")
    assert b"swagger" in Client().get("/api/docs/").content


def test_readiness_names_the_part_and_keeps_the_reason_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(key: str) -> None:
        raise Unavailable("storage_unavailable", "cannot connect to http://secret-host:9000/bucket")

    monkeypatch.setattr(site, "_readiness", site._Readiness())
    monkeypatch.setattr(storage, "size_of", refuse)
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "unavailable",
        "checks": {**dict.fromkeys(site.PARTS, "ok"), "object_store": "unavailable"},
    }


def test_a_part_that_hangs_is_unavailable_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, goes_on = [], threading.Event()

    def hang(key: str) -> None:
        asked.append(key)
        goes_on.wait(60)

    readiness = site._Readiness()
    monkeypatch.setattr(site, "_readiness", readiness)
    monkeypatch.setattr(site, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(storage, "size_of", hang)
    for _ in range(3):
        answer = Client().get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["object_store"]) == (503, "unavailable")
        readiness._checked_at -= site.FRESH_SECONDS
    assert len(asked) == 1
    goes_on.set()
    monkeypatch.setattr(site, "CHECK_SECONDS", 60)
    assert Client().get("/readyz").json()["checks"]["object_store"] == "ok"


def test_a_clock_that_differs_from_the_databases_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "_readiness", site._Readiness())
    now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: now() - timedelta(seconds=10))
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["clock"]) == (503, "unavailable")


def test_readiness_is_checked_once_a_second_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    readiness = site._Readiness()
    monkeypatch.setattr(site, "_readiness", readiness)
    monkeypatch.setattr(storage, "size_of", lambda key: asked.append(key))
    for _ in range(5):
        assert Client().get("/readyz").status_code == 200
    assert len(asked) == 1
    readiness._checked_at -= site.FRESH_SECONDS
    Client().get("/readyz")
    assert len(asked) == 2


@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/models", "/wp-login.php", "/static/none.js", "/jobsx", "/api", "/.env"]
)
def test_an_unknown_path_is_a_problem(path: str) -> None:
    answer = Client().get(path)
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


def test_the_routes_of_the_dashboard_are_known() -> None:
    router = (REPOSITORY / "frontend" / "src" / "app" / "router.tsx").read_text()
    segments = {path.split("/")[1] for path in re.findall(r'path: "(/[^"]*)"', router)}
    assert segments - {""} == set(site.DASHBOARD_PAGES)


def test_every_answer_carries_security_headers(api: Any) -> None:
    answer = api.send("GET", "jobs")
    assert answer["Cache-Control"] == "no-store"
    assert answer["Content-Security-Policy"].startswith("default-src 'none'")
    assert "script-src" not in answer["Content-Security-Policy"]
    assert "camera=()" in answer["Permissions-Policy"]
    page = Client().get("/api/docs/")
    assert "script-src 'self'" in page["Content-Security-Policy"]
    assert "unsafe" not in page["Content-Security-Policy"]


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a":' * 20_000 + "1" + "}" * 20_000, "[" * 100 + "]" * 100])
def test_deeply_nested_json_is_refused(body: str) -> None:
    answer = Client().post("/api/v1/jobs:plan", body, content_type="application/json")
    assert answer.status_code == 401, "nobody is known yet"
    answer = Client().post("/api/v1/invitations:accept", body[:16_000], content_type="application/json")
    assert answer.status_code in (400, 422)


def test_large_json_is_refused_with_the_limit_named(api: Any) -> None:
    answer = api.send("POST", "jobs", {"name": "x" * 2**20})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert "1048576 bytes" in answer.json()["detail"]


def test_titles_of_errors_are_plain(api: Any) -> None:
    assert api.send("DELETE", "jobs").json()["title"] == "Method Not Allowed"
    wrong = api.generic("POST", "/api/v1/jobs", "x", content_type="application/pdf")
    assert wrong.json()["title"] == "Unsupported Media Type"


def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", "--check", "--dry-run")


def test_presets_say_where_they_fit(api: Any, pool: Any) -> None:
    items = {item["name"]: item for item in api.send("GET", "presets").json()["items"]}
    assert items["demo"]["fits"] == {"fake": True}
    assert items["llama-8b"]["fits"] == {"fake": False}
    assert api.send("GET", "clusters").json()["items"][0]["pools"][0]["slots"] == 8
