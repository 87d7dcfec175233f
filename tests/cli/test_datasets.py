"""`athanor dataset add`: the upload of files as one stream, and the job that tokenises them."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

MADE = {
    "id": "dset_1", "name": "books", "version": 1, "aliases": [], "size_bytes": 12, "format": "auto", "text_field": "",
}  # fmt: skip
JOB = {
    "id": "job_1", "name": "prepare-books", "team": {"id": "team_1", "name": "demo"}, "project": "default",
    "status": "queued", "reason": None, "created_at": "2026-01-02T03:04:05Z", "attempt_count": 0,
    "progress": None, "warnings": [], "validation_loss": None,
}  # fmt: skip


def members(body: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}


def test_files_are_sent_as_one_tar_and_a_job_tokenises_them(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("POST /api/v1/datasets", answer(MADE, 201))
    server.answer("POST /api/v1/jobs", answer(JOB, 201))
    contents = {"a.jsonl": b'{"body": "x"}\n', "b.txt": b"y" * 1500, "empty.txt": b"", "c.parquet": b"z" * 1024}
    for name, content in contents.items():
        Path(athanor.home / name).write_bytes(content)
    result = athanor(
        "dataset", "add", "books", *contents, "--text-field", "body", "--tokenizer", "4096", "--team", "demo", "--json"
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["job"]["id"] == "job_1"
    upload, submission = server.seen
    assert "name=books" in upload.path
    assert "text_field=body" in upload.path
    assert upload.headers["Content-Type"] == "application/x-tar"
    assert members(upload.body) == contents
    sent = json.loads(submission.body)
    assert (sent["name"], sent["team"]) == ("prepare-books", "demo")
    assert sent["prepare"] == {
        "data": {"source": "dataset:books", "validation_fraction": 0.02, "text_field": "body"},
        "tokenizer": {"vocab_size": 4096},
    }


def test_files_of_one_name_in_two_folders_stay_apart(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("POST /api/v1/datasets", answer({}, 503), answer(MADE, 201))
    for folder in ("x", "y"):
        (athanor.home / folder).mkdir()
        (athanor.home / folder / "a.txt").write_text(folder)
    result = athanor("dataset", "add", "books", "x/a.txt", "y/a.txt", "--no-prepare")
    assert result.returncode == 0, result.stderr
    assert [members(seen.body) for seen in server.seen] == [{"0-a.txt": b"x", "1-a.txt": b"y"}] * 2


def test_waiting_for_the_job_ends_with_its_exit_code(server: Any, athanor: Any, answer: Any) -> None:
    failed = {**JOB, "status": "failed", "reason": {"code": "data_error", "message": "a.txt line 3", "remedy": None}}
    server.answer("POST /api/v1/datasets", answer(MADE, 201))
    server.answer("POST /api/v1/jobs", answer(JOB, 201))
    server.answer("GET /api/v1/jobs/job_1", answer(JOB), answer(failed))
    (athanor.home / "a.txt").write_text("x")
    assert athanor("dataset", "add", "books", "a.txt", "--wait").returncode == 1


def test_what_is_no_file_is_named_before_anything_is_sent(server: Any, athanor: Any) -> None:
    result = athanor("dataset", "add", "books", "absent.txt")
    assert result.returncode == 2
    assert "absent.txt is no file" in result.stderr
    assert server.seen == []


def test_a_data_set_is_tokenised_anew(server: Any, athanor: Any, answer: Any) -> None:
    listed = {**MADE, "team": {"id": "team_1", "name": "demo"}}
    other = {**listed, "id": "dset_2", "name": "book"}
    server.answer("GET /api/v1/datasets", answer({"items": [other, listed], "next_cursor": None}))
    server.answer("DELETE /api/v1/datasets/dset_1/preparations", answer({"forgotten": 2}))
    server.answer("POST /api/v1/jobs", answer(JOB, 201))
    result = athanor("dataset", "prepare", "books", "--again", "--tokenizer", "4096")
    assert result.returncode == 0, result.stderr
    assert [seen.method for seen in server.seen] == ["GET", "DELETE", "POST"]
    sent = json.loads(server.seen[-1].body)
    assert (sent["team"], sent["prepare"]["tokenizer"]) == ("demo", {"vocab_size": 4096})
    absent = athanor("dataset", "prepare", "boks", "--anew")
    assert absent.returncode == 4
    assert "'boks'" in absent.stderr


def test_conversations_are_left_to_the_job_that_trains_on_them(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("POST /api/v1/datasets", answer({**MADE, "format": "chat", "text_field": "messages"}, 201))
    (athanor.home / "chats.jsonl").write_text("{}")
    result = athanor("dataset", "add", "books", "chats.jsonl")
    assert result.returncode == 0, result.stderr
    assert "12 B, chat in 'messages'" in result.stdout
    assert "chat template of its model" in result.stdout
    assert [seen.method for seen in server.seen] == ["POST"]


def test_a_data_set_is_shown_with_its_rows_and_jobs(server: Any, athanor: Any, answer: Any) -> None:
    failed = {**JOB, "status": "failed", "reason": {"message": "Line 3 is no JSON.", "remedy": "Correct it."}}
    listed = {**MADE, "team": JOB["team"], "origin": "sealed", "text_field": "", "spec_source": "dataset:books"}
    detail = {
        **listed, "files": [{"path": "a.txt", "size_bytes": 12}], "digest": "ab" * 32,
        "preparation": {"state": "failed", "job": failed, "tokens": None},
        "tokenised_forms": [
            {"train_tokens": 9, "validation_tokens": 1, "vocab_size": 300, "size_bytes": 40, "job_id": "j"}
        ],
    }  # fmt: skip
    server.answer("GET /api/v1/datasets", answer({"items": [listed], "next_cursor": None}))
    server.answer("GET /api/v1/datasets/dset_1", answer(detail))
    preview = {"rows": ["one \x1b[31m[b]line[/b]", {"text": "two"}], "note": ""}
    server.answer("GET /api/v1/datasets/dset_1/preview", answer(preview))
    server.answer("GET /api/v1/jobs", answer({"items": [JOB], "next_cursor": None}))
    result = athanor("dataset", "show", "books")
    assert result.returncode == 0, result.stderr
    for text in ("dataset:books: 12 B", "ab" * 32, "Line 3 is no JSON. Correct it.", "9 + 1 tokens", "job_1  queued",
                 "[b]line[/b]", '{"text": "two"}'):  # fmt: skip
        assert text in result.stdout
    assert "\x1b" not in result.stdout


def version(number: int, *aliases: str, team: str = "demo", **fields: Any) -> dict[str, Any]:
    return {
        **MADE, "id": f"dset_{number}", "version": number, "aliases": list(aliases), "documents": None,
        "origin": "sealed", "team": {"id": f"team_{team}", "name": team}, "preparation": {"state": "none"},
        "created_at": "2026-01-02T03:04:05Z", **fields,
    }  # fmt: skip


def listed(answer: Any, *rows: dict[str, Any]) -> Any:
    return answer({"items": list(rows), "next_cursor": None})


def test_a_new_version_is_requested_and_tokenised_by_its_number(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("POST /api/v1/datasets", answer({**MADE, "version": 2}, 201))
    server.answer("POST /api/v1/jobs", answer(JOB, 201))
    (athanor.home / "a.txt").write_text("x")
    result = athanor("dataset", "add", "books", "a.txt", "--new-version")
    assert result.returncode == 0, result.stderr
    assert "data set books@2" in result.stdout
    upload, submission = server.seen
    assert "new_version=true" in upload.path
    sent = json.loads(submission.body)
    assert (sent["name"], sent["prepare"]["data"]["source"]) == ("prepare-books-2", "dataset:books@2")


def test_versions_are_listed_newest_first(server: Any, athanor: Any, answer: Any) -> None:
    rows = [version(2), version(1, "clean", documents=7), version(9, name="bookshelf")]
    server.answer("GET /api/v1/datasets", listed(answer, *rows))
    result = athanor("dataset", "versions", "books", "--json")
    assert [row["version"] for row in json.loads(result.stdout)] == [2, 1]
    assert "name=books&versions=all" in server.seen[0].path
    lines = athanor("dataset", "versions", "books").stdout.splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [["2", "auto", "-"], ["1", "clean", "auto"]]


@pytest.mark.parametrize(
    ("reference", "identifier"),
    [("books", "dset_2"), ("books@clean", "dset_1")],
)
def test_a_version_is_found_by_number_or_alias(
    server: Any, athanor: Any, answer: Any, reference: str, identifier: str
) -> None:
    server.answer("GET /api/v1/datasets", listed(answer, version(1, "clean"), version(2)))
    server.answer(f"GET /api/v1/datasets/{identifier}/deletion", answer({}, 404))
    server.answer(f"DELETE /api/v1/datasets/{identifier}/preparations", answer({"forgotten": 0}))
    server.answer("POST /api/v1/jobs", answer(JOB, 201))
    result = athanor("dataset", "prepare", reference, "--again")
    assert result.returncode == 0, result.stderr
    assert json.loads(server.seen[-1].body)["prepare"]["data"]["source"] == f"dataset:{reference}"


def test_what_no_version_is_called_is_refused(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/datasets", listed(answer, version(1, "clean"), version(2)))
    unknown = athanor("dataset", "show", "books@3")
    assert unknown.returncode == 4
    assert "no version '3'; `athanor dataset versions books` lists them" in " ".join(unknown.stderr.split())
    server.answer("GET /api/v1/datasets", listed(answer, version(1), version(1, team="other")))
    twice = athanor("dataset", "show", "books")
    assert twice.returncode == 4
    assert "2 data sets are called 'books'; name its --team" in " ".join(twice.stderr.split())


def test_an_alias_is_pointed_to_a_version_and_removed(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/datasets", listed(answer, version(2), version(1, "clean")))
    server.answer("PUT /api/v1/datasets/dset_2/aliases/clean", answer(version(2, "clean")))
    server.answer("DELETE /api/v1/datasets/dset_1/aliases/clean", answer(None, 204))
    moved = athanor("dataset", "alias", "books", "clean", "2")
    assert "books@clean is version 2" in moved.stdout, moved.stderr
    removed = athanor("dataset", "alias", "books", "clean", "--remove")
    assert "books@clean is removed" in removed.stdout, removed.stderr
    assert athanor("dataset", "alias", "books", "clean").returncode == 2


def test_a_diff_is_printed_with_what_was_not_compared(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/datasets", listed(answer, version(2), version(1, "clean")))
    found = {
        "before": version(1), "after": version(2, documents=9, size_bytes=2048), "added": ["b.txt"], "removed": [],
        "changed": [], "same": ["a.txt"], "unknown": ["c.txt"], "rows": {"added": 4, "removed": 1, "common": 5},
        "note": "Too large.",
    }  # fmt: skip
    server.answer("GET /api/v1/datasets/dset_2/diff", answer(found))
    result = athanor("dataset", "diff", "books@clean", "books")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "books@1 -> books@2",
        "size       12 B -> 2.0 KiB",
        "documents  unknown -> 9",
        "files      1 added: b.txt",
        "files      1 same: a.txt",
        "files      1 not compared: c.txt",
        "rows       4 added, 1 removed, 5 common",
        "Too large.",
    ]
    assert "from=dset_1" in server.seen[-1].path


def test_the_version_to_delete_is_named(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/datasets", listed(answer, version(2), version(1, "clean")))
    preview = {
        "kind": "dataset", "name": "books@1", "size_bytes": 12, "artifacts": 0, "checkpoints": 0, "preparations": 0,
        "blocked_by": [], "used_by": [], "registered": ["bot@3"], "aliases": ["clean"],
    }  # fmt: skip
    server.answer("GET /api/v1/datasets/dset_1/deletion", answer(preview))
    refused = athanor("delete", "dataset:books", "--preview")
    assert refused.returncode == 2
    assert "has 2 versions; name the one to delete, such as dataset:books@2" in " ".join(refused.stderr.split())
    shown = athanor("delete", "dataset:books@1", "--preview")
    assert shown.returncode == 0, shown.stderr
    assert "bot@3 is a registered model" in shown.stdout
    assert "the alias clean names it" in shown.stdout
