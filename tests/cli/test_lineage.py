"""`athanor lineage`: what is requested, and the tree that is printed."""

import json
from typing import Any

import pytest

JOB = "job_01KAN1T7Q3E8V5M2R9C4X6Y0ZB"


def node(identifier: str, kind: str, name: str, state: str = "stored", digest: str | None = None) -> dict[str, Any]:
    return {
        "id": identifier, "kind": kind, "name": name, "state": state, "digest": digest, "time": None, "made_by": None,
    }  # fmt: skip


def edge(target: str, relation: str, source: str, reference: str = "") -> dict[str, str]:
    return {"source_id": source, "target_id": target, "relation": relation, "reference": reference}


FOUND = {
    "of": "art_2",
    "nodes": [
        node("art_2", "model", "tune\x1b[31m", digest="ab" * 32), node(JOB, "job", "tune", "succeeded"),
        node("art_1", "model", "first"), node("dset_1", "dataset", "books"), node("mdl_1@3", "version", "bot@3"),
        node("art_2:ada", "download", "ada, 2 times", "recorded"),
    ],
    "edges": [
        edge("art_2", "made_by", JOB), edge(JOB, "base", "art_1", "model:bot@production"),
        edge("art_1", "made_by", "dset_1"), edge(JOB, "trained_on", "dset_1"),
        edge("mdl_1@3", "version_of", "art_2"), edge("art_2:ada", "download_of", "art_2"),
    ],
    "cut": ["depth"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def stored(server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/lineage", answer(FOUND))


def test_the_tree_is_indented_and_says_what_was_cut(athanor: Any) -> None:
    shown = athanor("lineage", "art_2")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == [
        "model tune  art_2  stored  sha256:abababababab",
        "Made of:",
        f"  made by job tune  {JOB}  succeeded",
        "    started from model first  art_1  stored (as model:bot@production)",
        "      made by dataset books  dset_1  stored",
        "    trained on dset_1, which is above",
        "Used for:",
        "  registered as version bot@3  mdl_1@3  stored",
        "  downloaded by ada, 2 times",
    ]
    assert "--depth 20" in shown.stderr
    assert "--limit" not in shown.stderr
    assert "another team" not in shown.stderr


def test_a_lineage_that_ends_at_another_team_names_no_limit(athanor: Any, server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/lineage", answer({**FOUND, "cut": ["team"]}))
    shown = athanor("lineage", "art_2")
    assert "It leads to a model of another team." in shown.stderr
    assert "There may be more" not in shown.stderr


@pytest.mark.parametrize(("option", "missing"), [("--up", "Used for"), ("--down", "Made of")])
def test_one_direction(option: str, missing: str, athanor: Any, server: Any) -> None:
    shown = athanor("lineage", "art_2", option)
    assert missing not in shown.stdout
    assert f"direction={option.removeprefix('--')}" in server.seen[-1].path


@pytest.mark.parametrize(
    ("reference", "of"),
    [
        ("art_2", "art_2"), ("mdl_1@production", "mdl_1%40production"), ("prep_7", "prep_7"), (JOB, JOB),
        ("model:bot@production", "mdl_1%403"), ("dataset:books", "dset_1"),
    ],
)  # fmt: skip
def test_what_is_requested(reference: str, of: str, athanor: Any, server: Any, answer: Any) -> None:
    model = {
        "id": "mdl_1", "name": "bot", "team": {"id": "team_1", "name": "red"},
        "aliases": [{"name": "production", "version": 3}],
    }  # fmt: skip
    server.answer("GET /api/v1/models", answer({"items": [model], "next_cursor": None}))
    server.answer("GET /api/v1/models/mdl_1/versions/3", answer({"number": 3, "model": model}))
    books = {"id": "dset_1", "name": "books", "version": 1, "aliases": [], "team": {"id": "team_1"}}
    server.answer("GET /api/v1/datasets", answer({"items": [books], "next_cursor": None}))
    shown = athanor("lineage", reference, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == json.loads(json.dumps(FOUND))
    assert f"of={of}&direction=both" in server.seen[-1].path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["art_2", "--up", "--down"], "--up or --down"),
        (["model:bot"], "athanor model show bot"),
        (["dataset:none"], "athanor dataset list"),
    ],
)
def test_errors_name_the_remedy(command: list[str], words: str, athanor: Any, server: Any, answer: Any) -> None:
    server.answer("GET /api/v1/datasets", answer({"items": [], "next_cursor": None}))
    done = athanor("lineage", *command)
    assert done.returncode != 0
    assert words in done.stderr
