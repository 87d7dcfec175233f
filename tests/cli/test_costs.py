"""`athanor costs`: requests to the server, and output."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROW = {
    "team": "red", "day": "2026-05-10", "currency": "EUR", "slot_seconds": 7200, "cost": 5_000_000,
    "charged": 4_250_000, "fault_slot_seconds": 1080, "fault_cost": 750_000, "saved_cost": -10_000,
    "milligrams": 1_500_000, "saved_milligrams": 0,
}  # fmt: skip
FOUND = {"after": "2026-04-10T00:00:00Z", "before": "2026-05-10T00:00:00Z", "items": [ROW]}


def test_costs_are_a_table_csv_or_json(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/costs", answer(FOUND))
    output = athanor("costs", "--by", "team,day", "--after", "2026-04-10T00:00:00Z").stdout
    asked = parse_qs(urlsplit(server.seen[-1].path).query)
    assert asked == {"by": ["team,day"], "after": ["2026-04-10T00:00:00Z"]}
    for words in ("red", "2026-05-10", "2.00", "0.30", "4.25 EUR", "-0.01 EUR", "1.500 kg"):
        assert words in output, output
    heading, line = athanor("costs", "--by", "team,day", "--csv").stdout.splitlines()
    assert dict(zip(heading.split(","), line.split(","), strict=True)) == {
        name: str(value) for name, value in ROW.items()
    }
    assert json.loads(athanor("costs", "--json").stdout) == FOUND
    server.answer("GET /api/v1/costs", answer({**FOUND, "items": []}))
    assert "No usage." in athanor("costs").stdout
