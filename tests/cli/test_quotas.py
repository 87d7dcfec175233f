"""`athanor quota` and `athanor queue`: requests to the server, and output."""

import json
from typing import Any

import yaml

SHARE = {
    "accelerator": "h100", "governed": True, "nominal": 8, "used": 10, "borrowed": 2, "lent": 0, "available": 3,
    "teams": 1,
}  # fmt: skip
NODE = {
    "id": "quota_1", "kind": "organisation", "name": "organisation", "path": "organisation", "parent": None, "depth": 0,
    "team": None, "weight": 1.0, "max_running_jobs": None, "max_queued_jobs": 7, "max_slots": None, "grants": [],
    "max_slots_per_job": None, "max_run_seconds": None, "max_storage_bytes": None, "shares": [SHARE],
    "idle_warning_seconds": None, "idle_pause_seconds": None,
    "running_jobs": 2, "queued_jobs": 1, "slots_used": 10,
}  # fmt: skip
RED = {**NODE, "id": "quota_2", "kind": "team", "name": "red", "path": "red", "depth": 1, "max_queued_jobs": None,
       "max_storage_bytes": 5000, "weight": 2.0, "shares": []}  # fmt: skip
TREE = {"version": 4, "whole": True, "may_change": True, "nodes": [NODE, RED]}
PREVIEW = {
    "version": 4, "differences": ["+ lab", "  red: max_slots none -> 2"], "started": [], "not_started": [],
    "notes": ["9 slots of h100 are granted in all, and the pools have 8"],
    "over": [{"node": "red", "what": "max_slots", "used": 3, "allowed": 2, "detail": "red: 3 slots are used"}],
    "preempted": [{"id": "job_1", "team": "red", "slots": 3, "accelerator": "h100", "why": "blue needs 3"}],
}  # fmt: skip
NOTHING = {**PREVIEW, "notes": [], "differences": [], "over": [], "preempted": []}


def test_the_tree_is_shown_with_what_is_used_of_it(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/quotas", answer(TREE))
    output = athanor("quota", "show").stdout
    for words in ("organisation", "h100", "10", "waiting jobs 7", "stored data 5000 B, weight 2"):
        assert words in output, output
    assert json.loads(athanor("quota", "show", "--json").stdout) == TREE
    document = {"organisation": {"teams": {"red": {"max_slots": 2}}}}
    server.answer("GET /api/v1/quotas/document", answer(document))
    assert yaml.safe_load(athanor("quota", "show", "--yaml").stdout) == document


def test_how_admission_decides_is_shown_and_changed(server: Any, athanor: Any, answer: Any) -> None:
    decides = {"fair_share": True, "half_life_seconds": 7 * 86_400, "age_step_seconds": 0, "backfill": True,
               "preempt": False, "protected_seconds": 600}  # fmt: skip
    server.answer("GET /api/v1/quotas/settings", answer(decides))
    assert athanor("quota", "settings").stdout.splitlines() == [
        "fair share: yes", "backfill: yes", "preempt: no", "half life: 7 d", "age step: 0 s", "protected: 10 min"
    ]  # fmt: skip
    server.answer("PUT /api/v1/quotas/settings", answer({**decides, "preempt": True}))
    changed = athanor("quota", "settings", "--preempt", "--no-backfill", "--protected", "1m", "--json")
    assert json.loads(changed.stdout)["preempt"] is True
    assert json.loads(server.seen[-1].body) == {"backfill": False, "preempt": True, "protected_seconds": 60}


def test_a_node_is_set_as_previewed(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("POST /api/v1/quotas:preview", answer(PREVIEW))
    server.answer("PATCH /api/v1/quotas", answer(TREE))
    done = athanor("quota", "set", "red", "--max-slots", "2", "--max-run-seconds", "none", "--grant", "h100=8:-:2",
                   "--grant", "cpu=none", "--grant", "a100=4")  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in (
        "+ lab",
        "max_slots none -> 2",
        "over red: 3 slots",
        "saves a checkpoint",
        "blue needs 3",
        "the pools have 8",
    ):
        assert words in done.stdout
    sent = server.seen[-1]
    assert sent.headers["If-Match"] == 'W/"4-"'
    assert json.loads(sent.body) == {
        "changes": [
            {
                "node": "red", "action": "change", "max_slots": 2, "max_run_seconds": None,
                "grants": {
                    "h100": {"nominal": 8, "borrow_limit": None, "lend_limit": 2},
                    "cpu": None,
                    "a100": {"nominal": 4, "borrow_limit": None, "lend_limit": None},
                },
            }
        ]
    }  # fmt: skip
    count = len(server.seen)
    assert athanor("quota", "set", "lab", "--create", "--dry-run").returncode == 0
    assert len(server.seen) == count + 1, "only the preview"
    wrong = athanor("quota", "set", "red", "--grant", "h100:8")
    assert (wrong.returncode, "write it like h100=8" in wrong.stderr) == (2, True)
    done = athanor("quota", "set", "red", "--max-run-time", "1d 12h", "--max-storage", "40GiB")
    assert done.returncode == 0, done.stderr
    (sent_change,) = json.loads(server.seen[-1].body)["changes"]
    assert (sent_change["max_run_seconds"], sent_change["max_storage_bytes"]) == (129_600, 40 * 2**30)
    done = athanor("quota", "set", "red", "--idle-warning", "20m", "--idle-pause", "none")
    assert done.returncode == 0, done.stderr
    (sent_change,) = json.loads(server.seen[-1].body)["changes"]
    assert (sent_change["idle_warning_seconds"], sent_change["idle_pause_seconds"]) == (1200, None)
    wrong = athanor("quota", "set", "red", "--max-run-time", "long")
    assert (wrong.returncode, "longest run: 'long' is not a duration; write it like 90m" in wrong.stderr) == (2, True)
    wrong = athanor("quota", "set", "red", "--max-slots", "many")
    assert (wrong.returncode, "--max-slots 'many'" in wrong.stderr) == (2, True)


def test_a_file_is_applied_only_when_it_changes_something(server: Any, athanor: Any, answer: Any) -> None:
    (athanor.home / "tree.yaml").write_text("organisation:\n  teams:\n    red: {max_slots: 2}\n")
    server.answer("POST /api/v1/quotas:preview", answer(NOTHING), answer(PREVIEW))
    same = athanor("quota", "apply", "tree.yaml", "--yes")
    assert (same.returncode, "Nothing would change" in same.stdout, len(server.seen)) == (0, True, 1)
    server.answer("PUT /api/v1/quotas", answer(TREE))
    assert "as the file says" in athanor("quota", "apply", "tree.yaml", "--yes").stdout
    assert json.loads(server.seen[-1].body) == {"organisation": {"teams": {"red": {"max_slots": 2}}}}
    (athanor.home / "wrong.yaml").write_text("teams: {}\n")
    wrong = athanor("quota", "preview", "wrong.yaml")
    assert (wrong.returncode, "has no organisation" in wrong.stderr) == (2, True)


def test_the_queue_says_why_and_until_when(server: Any, athanor: Any, answer: Any) -> None:
    job = {
        "id": "job_1", "name": "llm", "mine": True, "team": {"id": "t", "name": "red"}, "priority": "high", "slots": 4,
        "reason": {"code": "waiting_for_capacity", "message": "Not enough slots are free."},
        "wait": {
            "position": 1, "unblocks": "Starts when blue gives back 4 slots.", "p50_seconds": 600, "p90_seconds": 7300,
        },
    }  # fmt: skip
    other = {**job, "id": "job_2", "name": None, "mine": False, "wait": None, "reason": None}
    pool = {"pool": "iron/gpu", "accelerator": "h100", "slots": 12, "spare_slots": 4, "slots_used": 8,
            "waiting_jobs": 2, "waiting_slots": 8, "waiting_teams": 2, "jobs": [job, other]}  # fmt: skip
    server.answer("GET /api/v1/queue", answer({"items": [pool], "next_cursor": None}))
    output = athanor("queue").stdout
    for words in ("iron/gpu", "8 of 12 h100 slots used (4 spare)", "10 min to 2 h", "gives back 4 slots"):
        assert words in output, output
