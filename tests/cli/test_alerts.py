"""`athanor alert`: requests and output."""

import json
from typing import Any

import pytest

RULE = {
    "id": "alr_1", "team": "red", "name": "low MFU", "measure": "series_below", "series": "throughput/mfu_causal",
    "window": 50, "threshold": 0.28, "clear_threshold": None, "for_seconds": 600, "job_name": "", "labels": {},
    "severity": "warning", "recipients": "owner", "enabled": True, "created_by": "ada",
    "created_at": "2026-01-01T00:00:00Z",
}  # fmt: skip
ALERT = {
    "id": "alt_1", "team": "red", "rule_id": "alr_1", "rule": "low MFU", "severity": "warning",
    "measure": "series_below", "subject": "job_1", "subject_name": "llama", "job_id": "job_1", "state": "firing",
    "since": "2026-01-01T00:00:00Z", "fired_at": "2026-01-01T00:00:00Z", "resolved_at": None, "value": 0.1,
    "message": "mfu is 0.1",
}  # fmt: skip
NOTE = {
    "id": "ntf_1", "team": "red", "alert_id": "alt_1", "kind": "firing", "severity": "warning", "title": "low [MFU]",
    "text": "llama: mfu is 0.1", "job_id": "job_1", "created_at": "2026-01-01T00:00:00Z", "read_at": None,
    "mail_at": "2026-01-01T00:00:00Z", "mail_state": "failed", "mail_error": "no such user",
}  # fmt: skip
PREFERENCES = {
    "email": "", "mail_from": "warning", "time_zone": "UTC", "quiet_from": None, "quiet_until": None,
    "digest_at": None, "critical_immediately": True, "mail_is_on": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def lists(server: Any, answer: Any) -> None:
    for path, row in {"alert-rules": RULE, "alerts": ALERT, "notifications": NOTE}.items():
        server.answer(f"GET /api/v1/{path}", answer({"items": [row], "next_cursor": None}))
    server.answer("GET /api/v1/notification-preferences", answer(PREFERENCES))


@pytest.mark.parametrize(
    ("command", "request_line", "body"),
    [
        (
            ["create", "low MFU", "series_below", "0.28", "--series", "x/y", "--clear", "0.3", "--for", "10m"],
            "POST alert-rules",
            {
                "name": "low MFU", "measure": "series_below", "threshold": 0.28, "series": "x/y",
                "clear_threshold": 0.3, "for_seconds": 600,
            },
        ),
        (
            ["create", "q", "queue_wait", "60", "--job", "a*", "--label", "tier=gold", "--notify", "team"],
            "POST alert-rules",
            {
                "name": "q", "measure": "queue_wait", "threshold": 60.0, "job_name": "a*", "labels": {"tier": "gold"},
                "recipients": "team",
            },
        ),
        (["disable", "low MFU"], "PATCH alert-rules/alr_1", {"enabled": False}),
        (["read", "ntf_1"], "POST notifications:read", {"ids": ["ntf_1"]}),
        (
            ["preferences", "--quiet-from", "none", "--digest-at", "08:00", "--critical-waits"],
            "PATCH notification-preferences",
            {"quiet_from": None, "digest_at": "08:00", "critical_immediately": False},
        ),
    ],
)  # fmt: skip
def test_what_is_sent(command: list[str], request_line: str, body: Any, athanor: Any, server: Any, answer: Any) -> None:
    method, path = request_line.split()
    server.answer(f"{method} /api/v1/{path}", answer({**RULE, **PREFERENCES, "unread": 0}))
    done = athanor("alert", *command)
    assert done.returncode == 0, done.stderr
    (sent,) = [each for each in server.seen if each.method != "GET"]
    assert json.loads(sent.body) == body


def test_what_is_shown(athanor: Any) -> None:
    assert "low MFU" in athanor("alert", "rules").stdout
    assert "mfu is 0.1" in athanor("alert", "list", "--state", "firing").stdout
    shown = athanor("alert", "inbox", "--unread").stdout
    assert "low [MFU]" in shown
    assert "no such user" in shown
    assert "UTC" in athanor("alert", "preferences").stdout


@pytest.mark.parametrize("command", [["list", "--state", "x"], ["create", "q", "queue_wait", "1", "--label", "tier"]])
def test_wrong_options_are_refused_before_anything_is_sent(command: list[str], athanor: Any, server: Any) -> None:
    assert athanor("alert", *command).returncode == 2
    assert server.seen == []
