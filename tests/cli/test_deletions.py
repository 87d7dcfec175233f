"""`athanor delete` and `athanor trash`."""

import json
from typing import Any

import pytest

JOB = "job_01K00000000000000000000000"
PREVIEW = {
    "kind": "job", "target": JOB, "name": "tiny", "size_bytes": 2048, "artifacts": 1, "checkpoints": 2,
    "preparations": 0, "blocked_by": [], "used_by": [{"id": "job_2", "name": "second", "status": "succeeded"}],
    "undo_days": 7,
}  # fmt: skip
DELETION = {
    "id": "del_1", "team": {"id": "team_1", "name": "red"}, "kind": "job", "target": JOB, "name": "tiny",
    "size_bytes": 2048, "state": "pending", "deleted_by": "ada", "created_at": "2026-01-02T03:04:05Z",
    "purge_after": "2026-01-09T03:04:05Z",
}  # fmt: skip


@pytest.fixture
def stored(server, answer) -> None:
    server.answer(f"GET /api/v1/jobs/{JOB}/deletion", answer(PREVIEW))
    server.answer(f"DELETE /api/v1/jobs/{JOB}", answer(DELETION))
    server.answer("GET /api/v1/deletions", answer({"items": [DELETION], "next_cursor": None}))
    server.answer("POST /api/v1/deletions/del_1:restore", answer({**DELETION, "state": "restored"}))


def methods(server) -> list[str]:
    return [seen.method for seen in server.seen]


def test_a_preview_deletes_nothing_and_names_what_depends_on_it(server, athanor, stored: Any) -> None:
    result = athanor("delete", JOB, "--preview")
    assert result.returncode == 0, result.stderr
    assert "1 artifacts, 2 checkpoints" in result.stdout
    assert "used by second" in result.stdout
    assert methods(server) == ["GET"]


def test_it_is_deleted_when_confirmed_and_its_undoing_is_named(server, athanor, stored: Any) -> None:
    result = athanor("delete", JOB, "--yes")
    assert result.returncode == 0, result.stderr
    assert "athanor trash restore del_1" in " ".join(result.stdout.split())
    assert methods(server) == ["GET", "DELETE"]
    listed = athanor("trash", "list", "--json")
    assert json.loads(listed.stdout)[0]["id"] == "del_1"
    assert "is restored" in athanor("trash", "restore", "del_1").stdout


def test_without_an_answer_nothing_is_deleted(server, athanor, stored: Any) -> None:
    assert athanor("delete", JOB).returncode != 0
    assert methods(server) == ["GET"]


def test_a_team_is_deleted_by_its_name_and_its_certificate_printed(server, athanor, answer) -> None:
    team = "team_01K00000000000000000000000"
    preview = {**PREVIEW, "kind": "team", "target": team, "name": "red", "contents": {"members": 3, "data_keys": 0}}
    deletion = {**DELETION, "kind": "team", "target": team, "name": "red"}
    server.answer("GET /api/v1/teams", answer({"items": [{"id": team, "name": "red"}], "next_cursor": None}))
    server.answer(f"GET /api/v1/teams/{team}/deletion", answer(preview))
    server.answer(f"DELETE /api/v1/teams/{team}", answer(deletion))
    server.answer("GET /api/v1/deletions/del_1/certificate", answer({"kind": "certificate", "mac": "x"}))
    result = athanor("delete", "team", "red", "--yes")
    assert result.returncode == 0, result.stderr
    assert "3 members" in result.stdout
    assert "data keys" not in result.stdout
    assert methods(server) == ["GET", "GET", "DELETE"]
    assert json.loads(athanor("trash", "certificate", "del_1").stdout)["mac"] == "x"
    assert athanor("delete", "team", "blue", "--yes").returncode != 0
    assert athanor("delete", JOB, "red", "--yes").returncode == 2


def test_what_is_no_id_is_named(athanor) -> None:
    result = athanor("delete", "tiny")
    assert result.returncode == 2
    assert "dataset:NAME" in " ".join(result.stderr.split())
