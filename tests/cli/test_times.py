"""Times are printed in the local time zone with its offset, or in UTC on request."""

from typing import Any

import pytest

from tests.cli.test_commands import JOB

LINE = {"cursor": "1", "time": "2026-01-02T03:04:05.678Z", "attempt": 1, "rank": 0, "stream": "stdout", "text": "hello"}


@pytest.mark.parametrize(
    ("options", "date", "time"),
    [((), "2026-01-02 08:34:05+05:30", "08:34:05+05:30"), (("--utc",), "2026-01-02 03:04:05+00:00", "03:04:05+00:00")],
)
def test_the_zone_of_a_time_is_named(
    server: Any, athanor: Any, answer: Any, options: tuple[str, ...], date: str, time: str
) -> None:
    athanor.environment["TZ"] = "IST-5:30"
    server.answer("GET /api/v1/jobs", answer({"items": [JOB], "next_cursor": None}))
    server.answer("GET /api/v1/jobs/job_1", answer(JOB))
    server.answer(
        "GET /api/v1/jobs/job_1/logs",
        answer({"items": [LINE], "next_after": "1"}),
        answer({"items": [], "next_after": "1"}),
    )
    assert date in athanor(*options, "list").stdout
    assert f"created {date}" in athanor(*options, "show", "job_1").stdout
    assert athanor(*options, "logs", "job_1").stdout == f"{time} [0] hello\n"
