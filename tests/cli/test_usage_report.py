"""`athanor usage-report`: what it asks for and prints."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.cli.test_efficiency import ENERGY, lines

ROW = {
    "team": "red", "currency": "EUR", "slot_seconds": 7200, "cost": 4_000_000, "charged": 3_500_000,
    "fault_slot_seconds": 900, "fault_cost": 500_000,
    "productive": {"slot_seconds": 3600, "cost": 2_000_000},
    "unproductive": [
        {"activity": "startup", "reason": None, "slot_seconds": 900, "cost": 500_000},
        {"activity": "startup", "reason": {"code": "gpu_fault"}, "slot_seconds": 900, "cost": 500_000},
    ],
    "uncounted": {"slot_seconds": 1800, "cost": 1_000_000}, "energy": ENERGY,
}  # fmt: skip
FOUND = {"month": "2026-11", "items": [ROW]}


def test_the_month_of_a_team_is_a_table_that_adds_up_or_json(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/usage-report", answer(FOUND))
    output = lines(athanor("usage-report", "--month", "2026-11", "--team", "red").stdout)
    assert parse_qs(urlsplit(server.seen[-1].path).query) == {"month": ["2026-11"], "team": ["red"]}
    for line in (
        "2026-11 (UTC)", "red slot-hours cost", "productive 1.00 2.00 EUR", "startup 0.50 1.00 EUR",
        "not divided yet 0.50 1.00 EUR", "total 2.00 4.00 EUR", "of it lost to faults 0.25 0.50 EUR",
        "charged 1.75 3.50 EUR", "energy: 1.500 kWh, mixed; without 10m 00s slot time of which it is not known",
    ):  # fmt: skip
        assert line in output, output
    assert json.loads(athanor("usage-report", "--json").stdout) == FOUND
    server.answer("GET /api/v1/usage-report", answer({**FOUND, "items": []}))
    assert "No usage." in athanor("usage-report").stdout
