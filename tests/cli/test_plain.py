"""Terminal escape sequences in logs, names and messages of the server are removed."""

from typing import Any

import pytest

from athanor.cli.plain import plain
from tests.cli.test_commands import JOB

HOSTILE = "\x1b]0;PWNED\x07\x1b[2J\x1b[31mred\x1b[0m \x9b31mC1\x9b0m \u202eesrever\u202c a\rb\x08\x7f"
SEEN = "red C1 esrever ab"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HOSTILE, SEEN),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b]52;c;cm0gLXJmIC8=\x1b\\clip", "clip"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r\x1b\\dcs \x1b(0line \x1bcreset", "dcs line reset"),
        ("\x1b]0;never ended", "0;never ended"),
        ("\x1b\x1b[31m[2Jnested", "[2Jnested"),
        ("\x00\x07\x0b\x0c\x0e\x85\u2028\u2066\ud800x", "x"),
        ("Grüße, 世界 👋 [x] 100%", "Grüße, 世界 👋 [x] 100%"),
    ],
)
def test_escapes_and_controls_are_removed_and_text_stays(text: str, expected: str) -> None:
    assert plain(text) == expected
    assert "\x1b" not in plain(text)


def is_clean(output: str) -> bool:
    return not any(ord(letter) < 32 and letter not in "\t\n" or 0x7F <= ord(letter) < 0xA0 for letter in output)


def test_log_lines_do_not_control_the_terminal(server: Any, athanor: Any, answer: Any) -> None:
    line = {"cursor": "1", "time": "2026-01-02T03:04:05Z", "attempt": 1, "rank": 0, "stream": "stdout", "text": HOSTILE}
    server.answer(
        "GET /api/v1/jobs/job_1/logs",
        answer({"items": [line], "next_after": "1"}),
        answer({"items": [], "next_after": "1"}),
    )
    result = athanor("logs", "job_1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"03:04:05+00:00 [0] {SEEN}\n"


def test_names_reasons_and_errors_do_not_either(server: Any, athanor: Any, answer: Any) -> None:
    reason = {"code": "user_error", "message": HOSTILE, "remedy": HOSTILE, "charged": True}
    job = {**JOB, "status": "failed", "reason": reason, "warnings": [{"pointer": "/", "code": "c", "detail": HOSTILE}]}
    server.answer("GET /api/v1/jobs/job_1", answer(job))
    shown = athanor("show", "job_1")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count(SEEN) == 3 and is_clean(shown.stdout), shown.stdout
    named = {"id": "ds_1", "name": HOSTILE, "version": 1, "aliases": [], "origin": "sealed", "format": "text",
             "size_bytes": 1, "team": {"id": "t", "name": "red"}, "preparation": {"state": "none"}}  # fmt: skip
    server.answer("GET /api/v1/datasets", answer({"items": [named], "next_cursor": None}))
    listed = athanor("dataset", "list")
    assert SEEN in listed.stdout and is_clean(listed.stdout)
    errors = [{"pointer": "/x", "code": "c", "detail": HOSTILE}]
    server.answer("GET /api/v1/jobs/job_2", answer({"detail": HOSTILE, "errors": errors}, 422))
    refused = athanor("show", "job_2")
    assert refused.returncode == 2
    assert refused.stderr.count(SEEN) == 2 and is_clean(refused.stderr)


def test_tables_do_not_either(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("GET /api/v1/teams", answer({"items": [{"id": "team_1", "name": "red"}]}))
    secret = {"id": "sec_1", "name": "hf-token", "destinations": [], "updated_by": HOSTILE}
    server.answer("GET /api/v1/teams/team_1/secrets", answer({"items": [secret]}))
    result = athanor("secret", "list")
    assert SEEN in result.stdout and is_clean(result.stdout), result.stdout
