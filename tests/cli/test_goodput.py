"""`athanor goodput`: what it asks for and prints."""

import json
from typing import Any

JOB = "job_01HZZZZZZZZZZZZZZZZZZZZZZZ"
PATH = f"GET /api/v1/jobs/{JOB}/goodput"
CATEGORIES = [
    {
        "activity": "startup", "slot_seconds": 40.0, "share": 0.1, "cost": 40_000,
        "phases": [{"phase": "launch", "slot_seconds": 40.0, "cost": 40_000}],
    },
    {"activity": "training", "slot_seconds": 280.0, "share": 0.7, "cost": 3_000_000, "phases": []},
    {"activity": "lost", "slot_seconds": 60.0, "share": 0.15, "cost": 500_000, "phases": []},
    {"activity": "idle", "slot_seconds": 20.0, "share": 0.05, "cost": 100_000, "phases": []},
]  # fmt: skip
KILLED = {
    "attempt": 1, "time": "2026-03-01T10:01:00Z", "in_place": True, "node": "gpu-1", "steps_lost": 1017,
    "reason": {"code": "process_killed", "message": "", "remedy": "", "blame": "infrastructure"},
    "lost_slot_seconds": 60.0, "stalled_slot_seconds": 0.0, "startup_slot_seconds": 20.0, "cost": 520_000,
    "refunded": 0,
}  # fmt: skip
ATTEMPT = {
    "attempt": 1, "start": "2026-03-01T10:00:00Z", "end": "2026-03-01T10:01:40Z", "slots": 4, "slot_seconds": 400.0,
    "metered_until": "2026-03-01T10:01:40Z", "goodput": 0.7, "cost": 3_640_000, "refunded": 0,
    "categories": CATEGORIES,
}  # fmt: skip
FOUND = {
    "currency": "EUR", "slot_seconds": 400.0, "goodput": 0.7, "cost": 3_640_000, "refunded": 500_000,
    "charged": 3_140_000, "categories": CATEGORIES, "attempts": [ATTEMPT], "interruptions": [KILLED],
}  # fmt: skip


def lines(output: str) -> list[str]:
    """Return the lines with single spaces."""
    return [" ".join(line.split()) for line in output.splitlines()]


def test_the_ledger_is_two_tables_or_json(server: Any, athanor: Any, answer: Any) -> None:
    server.answer(PATH, answer(FOUND))
    output = lines(athanor("goodput", JOB).stdout)
    for line in (
        "goodput 70.0% of 6m 40s slot time; 3.14 EUR charged, 0.50 EUR refunded", "start-up 40 s 10.0% 0.04 EUR",
        "launch 40 s 0.04 EUR", "lost, not saved 1m 00s 15.0% 0.50 EUR", "idle nodes 20 s 5.0% 0.10 EUR",
        "total 6m 40s 3.64 EUR",
    ):  # fmt: skip
        assert line in output, output
    cause = "1, in place process_killed infrastructure gpu-1 1,017 1m 00s 0.0 s 20 s 0.52 EUR 0.00 EUR"
    assert any(line.endswith(cause) for line in output), output
    assert json.loads(athanor("goodput", JOB, "--json").stdout) == FOUND


def test_what_is_not_known_is_not_made_up(server: Any, athanor: Any, answer: Any) -> None:
    unknown = {**KILLED, "in_place": False, "reason": None, "node": None, "steps_lost": None}
    server.answer(PATH, answer({**FOUND, "interruptions": [unknown]}))
    cause = "1 not known not known not known not known 1m 00s 0.0 s 20 s 0.52 EUR 0.00 EUR"
    assert any(line.endswith(cause) for line in lines(athanor("goodput", JOB).stdout))
    server.answer(PATH, answer({**FOUND, "goodput": None, "attempts": [], "categories": [], "interruptions": []}))
    assert athanor("goodput", JOB).stdout == "No attempt has been launched.\n"


def test_the_interval_of_checkpoints_is_printed_with_what_it_was_chosen_from(
    server: Any, athanor: Any, answer: Any
) -> None:
    chosen = {
        "minutes": 37.25, "stall_seconds": 0.004, "slowdown_seconds": 0.5, "mean_hours_between_failures": 263.0,
        "chosen_at": "2026-03-01T10:00:30Z",
    }  # fmt: skip
    server.answer(PATH, answer({**FOUND, "checkpoint_interval": chosen}))
    expected = (
        "checkpoints: at least every 37m 15s (auto); a save costs 0.504 s of training, and a failure is expected every "
        "10d 23h"
    )
    assert expected in lines(athanor("goodput", JOB).stdout)
    server.answer(PATH, answer({**FOUND, "checkpoint_interval": None}))
    assert "checkpoints: at least" not in athanor("goodput", JOB).stdout


SUMS = {
    "currency": "EUR", "slot_seconds": 500, "goodput": 0.7, "cost": 4_000_000, "refunded": 500_000,
    "charged": 3_500_000, "categories": CATEGORIES, "uncounted": {"slot_seconds": 100, "cost": 360_000},
    "interruptions": [
        {
            "reason": KILLED["reason"], "attempts": 0, "restarts": 12, "steps_lost": 1017, "lost_slot_seconds": 60,
            "stalled_slot_seconds": 0, "startup_slot_seconds": 20, "cost": 520_000, "refunded": 500_000,
        }
    ],
    "jobs": [
        {
            "id": JOB, "name": "tiny", "slot_seconds": 400, "cost": 3_640_000, "unproductive_slot_seconds": 120,
            "unproductive_cost": 640_000,
        },
        {
            "id": None, "name": None, "slot_seconds": 4, "cost": 0, "unproductive_slot_seconds": 3,
            "unproductive_cost": 0,
        },
    ],
}  # fmt: skip
STATEMENT = {"after": "2026-03-01T00:00:00Z", "before": "2026-04-01T00:00:00Z", "items": [SUMS]}


def test_the_statement_of_a_team_has_the_activities_the_reasons_and_the_jobs(
    server: Any, athanor: Any, answer: Any
) -> None:
    server.answer("GET /api/v1/goodput", answer(STATEMENT))
    wanted = ("--team", "red", "--project", "p", "--from", "2026-03-01T00:00:00Z", "--to", "2026-04-01T00:00:00Z")
    output = lines(athanor("--utc", "goodput", *wanted).stdout)
    for line in (
        "2026-03-01 00:00:00+00:00 to 2026-04-01 00:00:00+00:00",
        "goodput 70.0% of 6m 40s slot time; 3.50 EUR charged, 0.50 EUR refunded",
        "not divided yet 1m 40s 0.36 EUR", "total 8m 20s 4.00 EUR",
        "process_killed infrastructure 0 12 1,017 1m 00s 0.0 s 20 s 0.52 EUR 0.50 EUR",
        f"{JOB} tiny 6m 40s 2m 00s 0.64 EUR", "(not shown) (not shown) 4.0 s 3.0 s 0.00 EUR",
    ):  # fmt: skip
        assert line in output, output
    assert json.loads(athanor("goodput", "--json").stdout) == STATEMENT
    server.answer("GET /api/v1/goodput", answer({**STATEMENT, "items": []}))
    assert "No usage." in athanor("goodput").stdout
    assert "leave JOB out" in athanor("goodput", JOB, "--team", "red").stderr
