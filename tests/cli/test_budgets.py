"""`athanor budget`: requests to the server, and output."""

import json
from typing import Any

PERIOD = {
    "start": "2026-03-01T00:00:00Z", "end": "2026-04-01T00:00:00Z", "amount": 3_600_000, "available": 3_236_400,
    "reserved": 360_000, "spent": 3600, "lost": 0, "warned_at": None,
}  # fmt: skip
BUDGET = {
    "id": "bud_1", "node": {"id": "quota_1", "name": "red"}, "path": "red", "name": "spring", "unit": "slot_hours",
    "currency": "", "accelerator": "h100", "period": "month", "amount": 3_600_000, "soft_percent": 80, "hard": True,
    "active": True, "current": PERIOD,
    "forecast": {"p50": 7200, "p90": 36_000, "at_present_rate": 3600, "exhausted_at": "2026-03-20T10:00:00Z"},
}  # fmt: skip
MONEY = {**BUDGET, "id": "bud_2", "name": "cash", "unit": "money", "currency": "EUR", "amount": 5_000_000}


def test_budgets_are_listed_and_shown_in_hours_and_money(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/budgets", answer({"items": [BUDGET, MONEY], "next_cursor": None}))
    listed = athanor("budget", "list").stdout
    assert "red/spring" in listed and "1,000.00 slot-hours" in listed and "5.00 EUR" in listed
    shown = athanor("budget", "show", "spring").stdout
    for words in ("of h100, hard, warns at 80 %", "1.00 slot-hours spent", "899.00 slot-hours left", "up to 10.00"):
        assert words in shown
    assert "used up at about 2026-03-20 10:00:00+00:00" in shown
    missing = athanor("budget", "show", "summer")
    assert (missing.returncode, "there is red/spring, red/cash" in missing.stderr) == (4, True)


def test_a_budget_is_set_and_made(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/budgets", answer({"items": [BUDGET, MONEY], "next_cursor": None}))
    server.answer("PATCH /api/v1/budgets/bud_2", answer({**MONEY, "amount": 2_500_000}))
    changed = athanor("budget", "set", "red/cash", "--amount", "2.5", "--soft")
    assert json.loads(server.seen[-1].body) == {"amount": 2_500_000, "hard": False}
    assert "2.50 EUR a month" in changed.stdout
    server.answer("GET /api/v1/quotas", answer({"nodes": [{"id": "quota_1", "path": "red", "name": "red"}]}))
    server.answer("POST /api/v1/budgets", answer(BUDGET, 201))
    athanor("budget", "set", "spring", "--node", "red", "--amount", "1000", "--hard", "--accelerator", "h100")
    made = {"node_id": "quota_1", "name": "spring", "unit": "slot_hours", "period": "month", "amount": 3_600_000}
    assert json.loads(server.seen[-1].body) == {**made, "hard": True, "accelerator": "h100"}
    wrong = athanor("budget", "set", "spring", "--amount", "many")
    assert (wrong.returncode, "'many' is no number" in wrong.stderr) == (2, True)


def test_a_statement_is_a_table_or_csv(server: Any, athanor: Any, answer: Any) -> None:
    line = {"team": {"id": "team_1", "name": "red"}, "job_id": "job_1", "spent": 3600, "reserved": 0, "refunded": 0}
    said = {"period": PERIOD, "lines": [line], "others": {"spent": 7200, "reserved": 5}, "burn_down": []}
    server.answer("GET /api/v1/budgets", answer({"items": [BUDGET], "next_cursor": None}))
    server.answer("GET /api/v1/budgets/bud_1/statement", answer(said))
    assert "job_1" in athanor("budget", "statement", "spring").stdout
    text = athanor("budget", "statement", "spring", "--csv").stdout.splitlines()
    assert text == ["team,job_id,spent,reserved,refunded", "red,job_1,3600,0,0", "others,,7200,5,0"]
