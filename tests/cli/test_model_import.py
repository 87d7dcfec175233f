"""`athanor model import`: what is sent, and what is refused before anything is."""

import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest

VERSION = {
    "number": 3, "model": {"id": "mdl_1", "name": "bot"}, "job": None, "attempt": None, "not_trainable": "",
    "step": 0, "artifact": "art_1", "size_bytes": 4096, "metrics": {}, "digest": "ab" * 32, "aliases": ["new"],
    "evaluations": [], "created_by": "ada", "created_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
HEADER = json.dumps({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
WEIGHTS = struct.pack("<Q", len(HEADER)) + HEADER + bytes(12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model, and what the cache of a download leaves beside it."""
    made = tmp_path / "bot"
    (made / ".cache").mkdir(parents=True)
    (made / "config.json").write_text('{"model_type": "llama"}')
    (made / "tokenizer.json").write_text("{}")
    (made / "model.safetensors").write_bytes(WEIGHTS)
    return made


def test_the_files_are_sent_as_one_tar(folder: Path, athanor: Any, server: Any, answer: Any) -> None:
    server.answer("POST /api/v1/models:import", answer(VERSION, status=201))
    done = athanor("model", "import", "bot", str(folder), "--alias", "new", "--tag", "a", "--tag", "b")
    assert done.returncode == 0, done.stderr
    assert "3 files" in done.stdout
    assert "6 parameters" in done.stdout
    assert "bot@3, new: imported, art_1" in done.stdout
    (sent,) = server.seen
    assert sent.path.endswith("?name=bot&alias=new&tag=a&tag=b")
    with tarfile.open(fileobj=io.BytesIO(sent.body)) as archive:
        assert archive.getnames() == ["config.json", "model.safetensors", "tokenizer.json"]
        found = archive.extractfile("model.safetensors")
        assert found is not None
        assert found.read() == WEIGHTS


def test_it_says_why_no_job_can_start_from_it(folder: Path, athanor: Any, server: Any, answer: Any) -> None:
    server.answer(
        "POST /api/v1/models:import", answer({**VERSION, "not_trainable": "model_type is 'gpt2'"}, status=201)
    )
    done = athanor("model", "import", "bot", str(folder))
    assert "No job can start from it: model_type is 'gpt2'" in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", None, "there is no config.json"),
        ("model.safetensors", None, "there are no *.safetensors"),
        ("model.safetensors", WEIGHTS[:-1], "its header describes"),
        ("pytorch_model.bin", b"x", "may be a pickle"),
        ("model.sig", b"{}", "leave this one out"),
        ("run.py", b"", "run.py is no file of a model"),
    ],
)
def test_what_is_no_complete_model_is_not_sent(
    folder: Path, athanor: Any, server: Any, name: str, content: bytes | None, says: str
) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    done = athanor("model", "import", "bot", str(folder))
    assert done.returncode == 2
    assert says in " ".join(done.stderr.split())
    assert server.seen == []


def test_an_imported_version_is_shown_without_a_step(athanor: Any, server: Any, answer: Any) -> None:
    model = {"id": "mdl_1", "name": "bot", "team": {"id": "team_1", "name": "red"}, "tags": [], "card": ""}
    server.answer("GET /api/v1/models", answer({"items": [model], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_1", answer(model))
    server.answer("GET /api/v1/models/mdl_1/grants", answer({"items": [], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_1/versions", answer({"items": [VERSION], "next_cursor": None}))
    done = athanor("model", "show", "bot")
    assert done.returncode == 0, done.stderr
    (row,) = [line for line in done.stdout.splitlines() if "imported" in line]
    assert row.split()[:5] == ["3", "new", "imported", "4.0", "KiB"]


def test_links_and_subfolders_are_not_followed(folder: Path, athanor: Any, server: Any, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text("{}")
    (folder / "added.json").symlink_to(tmp_path / "secret.json")
    done = athanor("model", "import", "bot", str(folder))
    assert (done.returncode, "is a symbolic link" in done.stderr, "cp -rL" in done.stderr) == (2, True, True)
    (folder / "added.json").unlink()
    (folder / "original").mkdir()
    done = athanor("model", "import", "bot", str(folder))
    assert (done.returncode, "is a folder" in done.stderr) == (2, True)
    assert athanor("model", "import", "bot", str(folder / "nowhere")).returncode == 2
    assert server.seen == []
