"""`athanor costs`: requests to the server, and output."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

ROW = {
    "team": "red", "day": "2026-05-10", "currency": "EUR", "slot_seconds": 7200, "cost": 5_000_000,
    "charged": 4_250_000, "fault_slot_seconds": 1080, "fault_cost": 750_000, "saved_cost": -10_000,
    "milligrams": 1_500_000, "saved_milligrams": 0,
}  # fmt: skip
FOUND = {"after": "2026-04-10T00:00:00Z", "before": "2026-05-10T00:00:00Z", "items": [ROW], "rest": []}


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


def test_carbon_that_nothing_was_counted_of_is_not_known(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/costs", answer({**FOUND, "items": [{**ROW, "milligrams": 0}]}))
    output = athanor("costs").stdout
    assert "not known" in output and "kg" not in output, output


def test_the_most_expensive_jobs_are_followed_by_the_sums_of_the_others(server: Any, athanor: Any, answer: Any) -> None:
    rows = [{**ROW, "job": "job_1", "job_name": "tiny"}, {**ROW, "job": None, "job_name": None}]
    rest = {**ROW, "groups": 1234, "slot_seconds": 36_000}
    server.answer("GET /api/v1/costs", answer({**FOUND, "items": rows, "rest": [rest]}))
    output = athanor("costs", "--by", "job").stdout
    for words in ("job name", "job_1", "tiny", "(not shown)", "and 1,234 more: 10.00 slot-hours, 4.25 EUR charged"):
        assert words in output, output
    heading, *lines = athanor("costs", "--by", "job", "--csv").stdout.splitlines()
    assert heading.startswith("job,job_name,currency,slot_seconds,")
    starts = ["job_1,tiny,EUR,7200,", ",,EUR,7200,", "rest,,EUR,36000,"]
    assert [line.startswith(start) for line, start in zip(lines, starts, strict=True)] == [True] * 3
