"""`athanor dataset add`: the upload of files as one stream, and the job that tokenises them."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

MADE = {"id": "dset_1", "name": "books", "size_bytes": 12, "format": "auto"}
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
    assert upload.headers["Content-Type"] == "application/x-tar"
    assert members(upload.body) == contents
    sent = json.loads(submission.body)
    assert (sent["name"], sent["team"]) == ("prepare-books", "demo")
    assert sent["prepare"] == {
        "data": {"source": "dataset:books", "text_field": "body", "validation_fraction": 0.02},
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
    listed = {"id": "dset_1", "name": "books", "team": {"id": "team_1", "name": "demo"}}
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
