"""`athanor checkpoint`."""

import json
from typing import Any

import pytest

JOB = "job_01K00000000000000000000000"
CHECKPOINT = {
    "id": "ckp_1", "job": JOB, "attempt": "att_1", "step": 20, "size_bytes": 2048, "files": [], "authentic": True,
    "metrics": {}, "created_at": "2026-01-02T03:04:05Z", "world_size": 1, "generation": 0, "state": "damaged",
    "damage": "part [2] is missing", "verified_at": "2026-01-02T04:04:05Z",
}  # fmt: skip
NOTICE = "The next start of the job resumes from the checkpoint of step 10."
VERBS = ("mark-damaged", "mark-intact", "retire")


@pytest.fixture
def stored(server, answer) -> None:
    server.answer(f"GET /api/v1/jobs/{JOB}/checkpoints", answer({"items": [CHECKPOINT], "next_cursor": None}))
    for verb in VERBS:
        acted = {**CHECKPOINT, "retired_at": None, "notice": NOTICE}
        server.answer(f"POST /api/v1/checkpoints/ckp_1:{verb.replace('-', '_')}", answer(acted))


def test_checkpoints_are_listed_with_what_is_wrong_with_them(server, athanor, stored: Any) -> None:
    result = athanor("checkpoint", "list", JOB)
    assert result.returncode == 0, result.stderr
    for text in ("ckp_1", "20", "damaged", "2.0 KiB", "part [2] is missing"):
        assert text in result.stdout
    assert json.loads(athanor("checkpoint", "list", JOB, "--json").stdout) == [CHECKPOINT]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"evaluation/loss": 2.34567, "evaluation/step": 1500.0}, "2.3457 (step 1500)"),
        ({"evaluation/loss": 2.34567}, "2.3457"),  # of an earlier version
        ({"train/loss": 2.5}, ""),
    ],
)
def test_a_checkpoint_is_listed_with_its_validation_loss_and_the_step_of_it(
    server, athanor, answer, metrics: dict[str, float], shown: str
) -> None:
    row = {**CHECKPOINT, "metrics": metrics}
    server.answer(f"GET /api/v1/jobs/{JOB}/checkpoints", answer({"items": [row], "next_cursor": None}))
    result = athanor("checkpoint", "list", JOB)
    assert result.returncode == 0, result.stderr
    assert shown in result.stdout
    assert ("(step" in result.stdout) == ("(step" in shown)
    assert ("2.3457" in result.stdout) == ("2.3457" in shown)


@pytest.mark.parametrize("verb", VERBS)
def test_a_state_is_changed_with_a_reason_and_what_follows_is_shown(server, athanor, stored: Any, verb: str) -> None:
    result = athanor("checkpoint", verb, "ckp_1", "--reason", "disk 7", *(["--yes"] if verb == "retire" else []))
    assert result.returncode == 0, result.stderr
    assert "ckp_1 of step 20 is" in result.stdout
    assert NOTICE in result.stdout
    (seen,) = server.seen
    assert (seen.method, json.loads(seen.body)) == ("POST", {"reason": "disk 7"})


def test_nothing_is_retired_without_an_answer_or_a_reason(server, athanor, stored: Any) -> None:
    assert athanor("checkpoint", "retire", "ckp_1", "--reason", "old").returncode != 0
    assert athanor("checkpoint", "retire", "ckp_1", "--yes").returncode == 2
    assert server.seen == []
