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
    {"activity": "lost", "slot_seconds": 80.0, "share": 0.2, "cost": 600_000, "phases": []},
]  # fmt: skip
KILLED = {
    "attempt": 1, "time": "2026-03-01T10:01:00Z", "in_place": True, "node": "gpu-1", "steps_lost": 1017,
    "reason": {"code": "process_killed", "message": "", "remedy": "", "blame": "infrastructure"},
    "lost_slot_seconds": 80.0, "stalled_slot_seconds": 0.0, "startup_slot_seconds": 20.0, "cost": 620_000,
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
        "launch 40 s 0.04 EUR", "lost, not saved 1m 20s 20.0% 0.60 EUR", "total 6m 40s 3.64 EUR",
    ):  # fmt: skip
        assert line in output, output
    cause = "1, in place process_killed infrastructure gpu-1 1,017 1m 20s 0.0 s 20 s 0.62 EUR 0.00 EUR"
    assert any(line.endswith(cause) for line in output), output
    assert json.loads(athanor("goodput", JOB, "--json").stdout) == FOUND


def test_what_is_not_known_is_not_made_up(server: Any, athanor: Any, answer: Any) -> None:
    unknown = {**KILLED, "in_place": False, "reason": None, "node": None, "steps_lost": None}
    server.answer(PATH, answer({**FOUND, "interruptions": [unknown]}))
    cause = "1 not known not known not known not known 1m 20s 0.0 s 20 s 0.62 EUR 0.00 EUR"
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
