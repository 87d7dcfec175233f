"""`athanor verify`: what is submitted, how results are shown, and the exit code."""

import json
from typing import Any

import pytest

ORIGINAL, REPLAY = "job_01KAN1T7Q3E8V5M2R9C4X6Y0ZB", "job_01KAN1T7Q3E8V5M2R9C4X6Y0ZC"
RESOURCES = {
    "cluster": "hpc", "accelerator": "h100", "nodes": 2, "processes_per_node": 8, "spare_nodes": 1,
    "cpus_per_process": None, "memory_bytes_per_node": None, "exclusive": True, "max_switches": None,
}  # fmt: skip
JOB = {
    "id": ORIGINAL, "name": "tune", "team": {"id": "team_1", "name": "red"}, "project": "default",
    "resolved_spec": {"resources": RESOURCES},
}  # fmt: skip
SEGMENT = {"start": "ckp_1", "end": "ckp_2", "first_step": 10, "last_step": 20}
MADE = {**JOB, "id": REPLAY, "resolved_spec": {"replay": {"job": ORIGINAL, "pinned": [SEGMENT]}}}
EQUAL = {
    "replay": {"id": REPLAY, "name": "replay-tune"}, "replayed": {"id": ORIGINAL, "name": "tune"}, "number": 0,
    **SEGMENT, "verdict": "equal", "is_exact": True, "tolerance": 0.05, "tensors": 40, "differing": 0,
    "differences": [], "because": "", "created_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
DIFFERS = {**EQUAL, "verdict": "differs", "differing": 1, "because": "1 of 40 tensors differ[s], model/head.weight"}


def test_a_replay_takes_the_place_of_the_job(athanor: Any, server: Any, answer: Any) -> None:
    server.answer(f"GET /api/v1/jobs/{ORIGINAL}", answer(JOB))
    server.answer("POST /api/v1/jobs", answer(MADE, status=201))
    done = athanor("verify", "--replay", "3", ORIGINAL, "--from-start", "--cluster", "other")
    assert done.returncode == 0, done.stderr
    assert "steps 11 to 20" in done.stdout
    (sent,) = [each for each in server.seen if each.method == "POST"]
    assert json.loads(sent.body) == {
        "name": "replay-tune", "team": "red", "project": "default",
        "resources": {"cluster": "other", "accelerator": "h100", "nodes": 2, "processes_per_node": 8},
        "replay": {"job": ORIGINAL, "segments": 3, "from_start": True},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "code", "says"),
    [
        ([EQUAL], 0, "11 to 20"),
        ([{**EQUAL, "verdict": "within_tolerance", "is_exact": False}, EQUAL], 0, "within_tolerance"),
        ([EQUAL, DIFFERS], 1, "differ[s]"),
        ([{**EQUAL, "verdict": "not_comparable", "because": "it is damaged"}], 1, "it is damaged"),
        ([], 0, "athanor verify --replay 1 JOB"),
    ],
)
def test_results_are_shown_and_decide_the_exit_code(
    athanor: Any, server: Any, answer: Any, rows: list[dict[str, Any]], code: int, says: str
) -> None:
    server.answer(f"GET /api/v1/jobs/{ORIGINAL}/replays", answer({"items": rows, "next_cursor": None}))
    done = athanor("verify", ORIGINAL)
    assert done.returncode == code, done.stderr
    assert says in done.stdout


def test_results_as_json_have_the_same_exit_code(athanor: Any, server: Any, answer: Any) -> None:
    server.answer(f"GET /api/v1/jobs/{ORIGINAL}/replays", answer({"items": [DIFFERS], "next_cursor": None}))
    done = athanor("verify", ORIGINAL, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, [DIFFERS])
