"""`athanor model` and `athanor download model:...`: requests and output."""

import json
from typing import Any

import pytest

VERSION = {
    "number": 1, "model": {"id": "mdl_1", "name": "bot"}, "job": {"id": "job_1", "name": "tune[1]"}, "attempt": 1,
    "step": 100, "artifact": "art_1", "size_bytes": 4096, "metrics": {}, "digest": "ab" * 32,
    "aliases": ["production"], "evaluations": [], "created_by": "ada", "created_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
RESULT = {
    "evaluation": "facts", "metric": "accuracy", "value": 0.75, "n": 40, "tokens": 90, "standard_error": 0.068,
    "low": 0.598, "high": 0.858, "data_source": "dataset:facts", "dataset": "dset_1", "trained_on": ["job_2"],
    "job": {"id": "job_3", "name": "evaluate[1]"}, "created_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
MODEL = {
    "id": "mdl_1", "team": {"id": "team_1", "name": "red"}, "name": "bot", "card": "# Bot\x1b[31m", "tags": ["chat"],
    "versions": 1, "last_version": 1, "created_by": "ada", "created_at": "2026-01-01T00:00:00Z",
    "aliases": [{"name": "production", "version": 1, "moved_by": "ada", "moved_at": "2026-01-01T00:00:00Z"}],
    "is_shared": False,
}  # fmt: skip
SHARED = {**MODEL, "id": "mdl_2", "team": {"id": "team_2", "name": "blue"}, "is_shared": True}
GRANT = {"team": {"id": "team_3", "name": "green"}, "granted_by": "ada", "created_at": "2026-01-01T00:00:00Z"}
JOB = "job_01KAN1T7Q3E8V5M2R9C4X6Y0ZB"


@pytest.fixture(autouse=True)
def stored(server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/models", answer({"items": [MODEL], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_1/versions", answer({"items": [VERSION], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_1/grants", answer({"items": [GRANT], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_1/versions/1", answer(VERSION))


@pytest.mark.parametrize(
    ("command", "request_line", "body"),
    [
        (["register", "bot", "art_1"], "POST models/mdl_1/versions", {"artifact": "art_1"}),
        (["register", "bot", JOB, "--alias", "new"], "POST models/mdl_1/versions", {"job": JOB, "alias": "new"}),
        (["alias", "bot", "production", "1"], "PUT models/mdl_1/aliases/production", {"version": 1}),
        (
            ["promote", "bot@production", "--to", "stable", "--require", "accuracy>=0.8", "--require", "loss<2"],
            "PUT models/mdl_1/aliases/stable",
            {"version": 1, "require": ["accuracy>=0.8", "loss<2"]},
        ),
        (["describe", "bot", "--tag", "a", "--tag", "b"], "PATCH models/mdl_1", {"tags": ["a", "b"]}),
        (["describe", "bot", "--no-tags"], "PATCH models/mdl_1", {"tags": []}),
        (["share", "bot", "green"], "PUT models/mdl_1/grants/green", {}),
    ],
)
def test_what_is_sent(command: list[str], request_line: str, body: Any, athanor: Any, server: Any, answer: Any) -> None:
    method, path = request_line.split()
    server.answer(f"{method} /api/v1/{path}", answer({**MODEL, **VERSION, **GRANT, "version": 1}))
    done = athanor("model", *command)
    assert done.returncode == 0, done.stderr
    (sent,) = [each for each in server.seen if each.method != "GET"]
    assert json.loads(sent.body) == body


def test_a_model_is_created_by_its_first_version(athanor: Any, server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/models", answer({"items": [], "next_cursor": None}))
    server.answer("POST /api/v1/models", answer(MODEL, status=201))
    done = athanor("model", "register", "bot", "art_1", "--team", "red", "--alias", "candidate")
    assert done.returncode == 0, done.stderr
    assert "bot@1" in done.stdout
    assert "tune[1]" in done.stdout
    (sent,) = [each for each in server.seen if each.method == "POST"]
    assert json.loads(sent.body) == {"name": "bot", "team": "red", "artifact": "art_1", "alias": "candidate"}


def test_what_is_shown(athanor: Any) -> None:
    assert "production=1" in athanor("model", "list").stdout
    shown = athanor("model", "show", "bot").stdout
    assert "art_1" in shown
    assert "# Bot" in shown
    assert "shared with: green" in shown
    assert "\x1b[31m" not in shown
    assert json.loads(athanor("model", "show", "bot", "--json").stdout)["versions"][0]["number"] == 1


def test_a_deletion_shows_what_depends_on_it_and_asks(athanor: Any, server: Any, answer: Any) -> None:
    job = {"id": "job_2", "name": "later", "status": "running"}
    found = {
        "model": VERSION["model"], "versions": [VERSION], "aliases": MODEL["aliases"], "blocked_by": [job],
        "used_by": [{**job, "name": "earlier", "status": "succeeded"}], "grants": [GRANT],
    }  # fmt: skip
    server.answer("GET /api/v1/models/mdl_1/versions/1/deletion", answer(found))
    server.answer("DELETE /api/v1/models/mdl_1/versions/1", answer(None, status=204))
    shown = athanor("model", "delete", "bot", "1", "--preview").stdout
    for words in (
        "art_1 of tune[1]",
        "named by alias production",
        "base model of later",
        "base model of earlier",
        "shared with team green",
    ):
        assert words in shown
    assert athanor("model", "delete", "bot", "1", given="n\n").returncode == 1
    assert not [each for each in server.seen if each.method == "DELETE"]
    assert "bot@1 is deleted" in athanor("model", "delete", "bot", "1", "--yes").stdout


def test_a_shared_model_is_named_with_its_team_and_hides_no_other(athanor: Any, server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/models", answer({"items": [SHARED, MODEL], "next_cursor": None}))
    assert "blue/bot" in athanor("model", "list").stdout
    assert "mdl_1" in athanor("model", "show", "bot").stdout, "of the two, one's own"
    server.answer("GET /api/v1/models", answer({"items": [SHARED], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_2/versions", answer({"items": [{**VERSION, "attempt": None}]}))
    server.answer("GET /api/v1/models/mdl_2/versions/1", answer(VERSION))
    shown = athanor("model", "show", "blue/bot").stdout
    assert "as model:blue/bot@ALIAS" in shown
    assert "art_1" in shown
    assert "team=blue&name=bot" in next(each.path for each in server.seen[::-1] if "/models?" in each.path)
    server.answer("GET /api/v1/artifacts/art_1", answer({"code": "gone"}, status=404))
    assert athanor("download", "model:blue/bot@production").returncode != 0
    assert server.seen[-1].path == "/api/v1/artifacts/art_1"
    assert athanor("model", "show", "bot").returncode != 0


def test_sharing_ends(athanor: Any, server: Any, answer: Any) -> None:
    server.answer("DELETE /api/v1/models/mdl_1/grants/green", answer(None, status=204))
    assert "no longer shared with green" in athanor("model", "share", "bot", "green", "--remove").stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["model", "show", "none"], "athanor model list"),
        (["model", "alias", "bot", "production"], "--remove"),
        (["model", "describe", "bot"], "--card"),
        (["download", "model:bot@staging"], "its aliases: production"),
        (["download", "model:bot"], "athanor model show bot"),
    ],
)
def test_errors_name_the_remedy(command: list[str], words: str, athanor: Any) -> None:
    done = athanor(*command)
    assert done.returncode != 0
    assert words in done.stderr


@pytest.mark.parametrize("reference", ["model:bot@production", "model:bot@1"])
def test_a_download_of_a_version_is_that_of_its_artifact(
    reference: str, athanor: Any, server: Any, answer: Any
) -> None:
    server.answer("GET /api/v1/artifacts/art_1", answer({"code": "gone"}, status=404))
    assert athanor("download", reference).returncode != 0
    assert server.seen[-1].path == "/api/v1/artifacts/art_1"


def compared(version: int, difference: dict[str, Any] | None, **result: Any) -> dict[str, Any]:
    return {"version": version, "aliases": [], "result": {**RESULT, **result}, "difference": difference}


def test_evaluations_are_compared_and_those_on_training_data_are_warned_about(
    athanor: Any, server: Any, answer: Any
) -> None:
    differences = [
        (0.1, True, True, 0.012), (-0.2, True, False, None), (0.01, False, True, 0.5), (0.3, None, True, None),
    ]  # fmt: skip
    items = [
        compared(number, {"value": value, "low": None, "high": None, "is_significant": sure, "is_better": better,
                          "is_paired": p_value is not None, "p_value": p_value}, trained_on=[])
        for number, (value, sure, better, p_value) in enumerate(differences, start=2)
    ]  # fmt: skip
    items.append(compared(1, None, low=None, high=None))
    server.answer("GET /api/v1/models/mdl_1/evaluations", answer({"against": 1, "items": items}))
    done = athanor("model", "evaluations", "bot", "--against", "1")
    assert done.returncode == 0, done.stderr
    assert server.seen[-1].path.endswith("evaluations?against=1")
    for text in ("0.598 to 0.858", "+0.1, better (p", "-0.2, worse", "+0.01, not significant", "significance unknown"):
        assert text in done.stdout
    assert "0.012)" in done.stdout
    assert "evaluate[1]" in done.stdout
    (warning,) = [line for line in done.stdout.splitlines() if line.startswith("warning")]
    assert "facts.accuracy of version 1 is on dataset:facts, which the model was trained on (job_2)" in warning


def test_a_promotion_warns_about_results_on_training_data(athanor: Any, server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/models/mdl_1/versions/1", answer({**VERSION, "evaluations": [RESULT]}))
    server.answer("PUT /api/v1/models/mdl_1/aliases/stable", answer({"name": "stable", "version": 1}))
    done = athanor("model", "promote", "bot@1", "--to", "stable")
    assert "bot@stable is version 1" in done.stdout
    assert "warning: facts.accuracy is on dataset:facts" in done.stdout


def test_a_model_without_evaluations_says_how_to_make_one(athanor: Any, server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/models/mdl_1/evaluations", answer({"against": None, "items": []}))
    assert "evaluation.model: model:bot@ALIAS" in athanor("model", "evaluations", "bot").stdout
