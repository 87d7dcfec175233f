"""`athanor model document`: Markdown or a bill of materials of what the platform answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_registry import MODEL, VERSION

FOUND = {
    "model": "bot", "version": 1, "digest": "ab" * 32, "regulation": "An annex", "limits": ["Of the base nothing."],
    "items": [
        {
            "number": "1.1(f)", "title": "Licence", "heading": "Licence", "statement": "Apache\x1b[31m-2.0",
            "missing": False, "facts": [],
        },
        {
            "number": "1.2(c)", "title": "Data", "heading": "Data", "statement": None, "missing": True,
            "facts": [
                {"name": "Size", "value": "3 | 4", "of": "dset_1", "record": "/datasets/dset_1"},
                {"name": "Created", "value": None, "of": "dset_1", "record": "/datasets/dset_1"},
            ],
        },
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def stored(server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/models", answer({"items": [MODEL], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_1/versions/1", answer(VERSION))
    server.answer("GET /api/v1/models/mdl_1/versions/1/documentation", answer(FOUND))
    server.answer("GET /api/v1/models/mdl_1/versions/1/bom", answer({"bomFormat": "CycloneDX"}))


@pytest.mark.parametrize("reference", ["bot@production", "bot@1", "model:bot@production"])
def test_facts_statements_and_limits_are_written_and_what_is_left_is_named(reference: str, athanor: Any) -> None:
    done = athanor("model", "document", reference)
    assert done.returncode == 0, done.stderr
    assert "# Technical documentation of bot@1" in done.stdout
    assert "**Not on record**: Of the base nothing." in done.stdout
    assert "| Size | 3 \\| 4 | dset_1 | `/api/v1/datasets/dset_1` |" in done.stdout
    assert "| Created | not known |" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.index("Apache") > done.stdout.index("## 1.1(f) Licence")
    assert "with these headings: Data" in done.stderr


def test_it_is_written_to_a_file(athanor: Any, tmp_path: Path) -> None:
    done = athanor("model", "document", "bot@1", "--out", str(tmp_path / "bot.md"))
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "bot.md").read_text().startswith("# Technical documentation of bot@1\n")
    assert athanor("model", "document", "bot@1", "--bom", "--out", str(tmp_path / "bom.json")).returncode == 0
    assert json.loads((tmp_path / "bom.json").read_text()) == {"bomFormat": "CycloneDX"}
    refused = athanor("model", "document", "bot@1", "--out", str(tmp_path / "none" / "bot.md"))
    assert refused.returncode == 2
    assert "cannot be written: No such file or directory" in refused.stderr


def test_a_provenance_is_written_as_it_was_signed(server: Any, answer: Any, athanor: Any, tmp_path: Path) -> None:
    server.answer("POST /api/v1/models/mdl_1/versions/1/provenance", answer({"dsseEnvelope": {}}))
    done = athanor("model", "document", "bot@1", "--provenance", "--out", str(tmp_path / "made.json"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "made.json").read_text()) == {"dsseEnvelope": {}}
    refused = athanor("model", "document", "bot@1", "--provenance", "--bom")
    assert (refused.returncode, "give one of them at a time" in refused.stderr) == (2, True)
