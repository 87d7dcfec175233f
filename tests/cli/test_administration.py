"""`athanor team`, `invitation`, `project`, `token`, `service-account`, `webhook`, `audit`: requests and output."""

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

TEAM = {"id": "team_1", "name": "red", "max_running_jobs": None, "max_slots": 8, "created_at": "2026-01-01T00:00:00Z"}
MEMBER = {"user_id": "user_1", "username": "lin", "email": "", "role": "member", "is_service_account": False}
INVITATION = {
    "id": "inv_1", "role": "member", "note": "", "created_by": "ada", "created_at": "2026-01-01T00:00:00Z",
    "expires_at": "2126-01-01T00:00:00Z", "accepted_by": None, "accepted_at": None, "revoked_at": None,
    "declined_at": None, "username": "lin",
}  # fmt: skip
PROJECT = {
    "id": "proj_1", "team": {"id": "team_1", "name": "red"}, "name": "llama", "description": "", "created_by": "ada",
    "created_at": "2026-01-01T00:00:00Z", "archived_at": None, "job_count": 3, "live_job_count": 1,
    "last_submitted_at": None,
}  # fmt: skip
TOKEN = {
    "id": "tok_1", "name": "ci", "prefix": "ath_12345678", "team": "red", "scopes": ["read", "submit"],
    "created_at": "2026-01-01T00:00:00Z", "expires_at": "2126-01-01T00:00:00Z", "last_used_at": None,
    "revoked_at": None, "parent": None,
}  # fmt: skip
SECRET = "ath_12345678-and-the-rest"
WEBHOOK = {
    "id": "wh_1", "team": "red", "name": "chat", "url": "https://example.org/", "types": ["job.status.failed"],
    "enabled": True, "disabled_reason": "", "disabled_at": None, "failing_since": None, "secrets": [],
}  # fmt: skip
DELIVERY = {
    "id": "dlv_1", "webhook_id": "wh_1", "event_type": "webhook.test", "state": "pending", "tries": 0,
    "next_try_at": None, "gives_up_at": "", "created_at": "2026-01-01T00:00:00Z", "finished_at": None, "log": [],
}  # fmt: skip
TRY = {"at": "", "status": 500, "seconds": 0.1, "error": "", "answer": ""}
RECORD = {
    "seq": 7, "time": "2026-01-01T00:00:00Z", "action": "project.create", "actor": "ada", "team_id": "team_1",
    "target_type": "project", "target_id": "proj_1", "address": "127.0.0.1", "before": None,
    "after": {"name": "llama"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def lists(server: Any, answer: Any) -> None:
    for path, row in {
        "teams": TEAM, "teams/team_1/members": MEMBER, "teams/team_1/invitations": INVITATION, "projects": PROJECT,
        "tokens": TOKEN, "webhooks": WEBHOOK, "audit": RECORD,
        "invitations": {"id": "inv_1", "team": "blue", "role": "member", "created_by": "bo", "expires_at": None},
        "teams/team_1/service-accounts": {"id": "user_2", "username": "ci@red", "created_at": "2026-01-01T00:00:00Z"},
    }.items():  # fmt: skip
        server.answer(f"GET /api/v1/{path}", answer({"items": [row], "next_cursor": None}))


def sent(server: Any) -> tuple[str, Any]:
    """The last request that changes something, and its body."""
    last = [each for each in server.seen if each.method != "GET"][-1]
    return f"{last.method} {last.path.removeprefix('/api/v1/')}", json.loads(last.body or "null")


@pytest.mark.parametrize(
    ("command", "request_line", "body"),
    [
        ("team create blue --max-slots 4", "POST teams", {"name": "blue", "max_slots": 4}),
        ("team update red --max-running-jobs none", "PATCH teams/team_1", {"max_running_jobs": None}),
        ("team invite lin --role viewer", "POST teams/team_1/members", {"username": "lin", "role": "viewer"}),
        ("team set-role lin admin", "PATCH teams/team_1/members/user_1", {"role": "admin"}),
        ("team remove-member lin", "DELETE teams/team_1/members/user_1", None),
        ("team revoke-invitation inv_1", "DELETE invitations/inv_1", None),
        ("invitation accept blue", "POST invitations/inv_1:accept", {}),
        ("invitation decline blue", "POST invitations/inv_1:decline", {}),
        ("project create llama --team red", "POST projects", {"name": "llama", "team": "red"}),
        ("project archive llama", "PATCH projects/proj_1", {"archived": True}),
        ("project unarchive llama", "PATCH projects/proj_1", {"archived": False}),
        ("token revoke ci", "DELETE tokens/tok_1", None),
        ("token revoke ath_12345678...", "DELETE tokens/tok_1", None),
        ("token revoke-all", "POST tokens:revoke-all", {}),
        ("token revoke-all --member lin", "POST teams/team_1/members/user_1/tokens:revoke-all", {}),
        ("service-account create bot --role viewer", "POST teams/team_1/service-accounts",
         {"name": "bot", "role": "viewer"}),
        ("service-account delete ci", "DELETE service-accounts/user_2", None),
        ("webhook disable chat", "PATCH webhooks/wh_1", {"enabled": False}),
        ("webhook enable https://example.org/", "PATCH webhooks/wh_1", {"enabled": True}),
        ("webhook redeliver dlv_1", "POST deliveries/dlv_1:redeliver", {}),
        ("webhook delete chat", "DELETE webhooks/wh_1", None),
    ],
)  # fmt: skip
def test_a_command_sends_one_change(
    server: Any, athanor: Any, answer: Any, command: str, request_line: str, body: Any
) -> None:
    method, _, path = request_line.partition(" ")
    row = PROJECT if "project" in path else {**TEAM, **MEMBER, **INVITATION, **WEBHOOK, **DELIVERY, "revoked": 2}
    server.answer(f"{method} /api/v1/{path}", answer(b"", 204) if method == "DELETE" else answer(row))
    result = athanor(*command.split())
    assert result.returncode == 0, result.stderr
    assert sent(server) == (request_line, body)
    assert result.stdout


@pytest.mark.parametrize(
    ("command", "request_line", "body", "secret"),
    [
        ("token create ci --scope read --scope submit --expires 30d", "POST tokens",
         {"name": "ci", "scopes": ["read", "submit"], "expires_in_days": 30}, "token"),
        ("token create ci --service-account ci@red", "POST service-accounts/user_2/tokens", {"name": "ci"}, "token"),
        ("token rotate ci --overlap 2h", "POST tokens/tok_1:rotate", {"overlap_seconds": 7200}, "token"),
        ("webhook create https://example.org/ --type job --name chat", "POST webhooks",
         {"url": "https://example.org/", "name": "chat", "types": ["job"]}, "secret"),
        ("webhook rotate-secret chat --overlap 0", "POST webhooks/wh_1:rotate_secret", {"overlap_seconds": 0},
         "secret"),
        ("team invite --note Lin --expires 12h", "POST teams/team_1/invitations",
         {"role": "member", "note": "Lin", "expires_in_hours": 12}, "url"),
    ],
)  # fmt: skip
def test_a_new_secret_is_alone_on_standard_output(
    server: Any, athanor: Any, answer: Any, command: str, request_line: str, body: Any, secret: str
) -> None:
    method, _, path = request_line.partition(" ")
    server.answer(f"{method} /api/v1/{path}", answer({**INVITATION, **TOKEN, **WEBHOOK, secret: SECRET}, 201))
    result = athanor(*command.split())
    assert (result.returncode, result.stdout) == (0, f"{SECRET}\n"), result.stderr
    assert sent(server) == (request_line, body)
    assert result.stderr
    assert SECRET not in result.stderr
    as_json = athanor(*command.split(), "--json")
    assert json.loads(as_json.stdout)[secret] == SECRET
    assert not as_json.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("team list", ["team_1", "red", "none", "8"]),
        ("team members", ["lin", "member", "person"]),
        ("team invitations red", ["inv_1", "lin", "open"]),
        ("invitation list", ["blue", "bo"]),
        ("project list", ["llama", "red", "active", "3"]),
        ("token list", ["tok_1", "ath_12345678...", "read, submit", "until 2126"]),
        ("service-account list", ["ci@red"]),
        ("webhook list", ["wh_1", "chat", "job.status.failed", "enabled"]),
        ("audit list", ["7", "ada", "project.create", "project proj_1 (llama)", "red", "127.0.0.1"]),
    ],
)
def test_lists_are_tables_or_json(server: Any, athanor: Any, command: str, words: list[str]) -> None:
    output = athanor(*command.split()).stdout
    for word in words:
        assert word in output, output
    assert len(json.loads(athanor(*command.split(), "--json").stdout)) == 1


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("team show green", 2, "--team green: your teams are red"),
        ("team update red", 2, "nothing to change: give --max-running-jobs or --max-slots"),
        ("team update red --max-slots many", 2, "--max-slots 'many': give a whole number, or none"),
        ("team set-role nobody admin", 4, "no member 'nobody': `athanor team members` shows them"),
        ("team invite lin --expires 3d", 2, "--note and --expires are for a link"),
        ("token create x --expires 12h", 2, "--expires '12h': give whole days, such as 30d"),
        ("token create x --expires soon", 2, "--expires: 'soon' is not a duration"),
        ("token revoke other", 4, "no valid token 'other': `athanor token list` shows them"),
        ("invitation accept red", 4, "`athanor invitation list`"),
        ("webhook deliveries chat --state done", 2, "choose one of delivered, failed, pending"),
        ("audit list --team green", 2, "--team green: your teams are red"),
        ("audit list --after yesterday", 2, "--after 'yesterday' is no time: write it like 2026-01-31"),
    ],
)
def test_wrong_input_changes_nothing_and_names_the_remedy(
    server: Any, athanor: Any, command: str, code: int, message: str
) -> None:
    result = athanor(*command.split())
    assert (result.returncode, message in result.stderr) == (code, True), result.stderr
    assert all(each.method == "GET" for each in server.seen)


def test_of_several_tokens_with_one_name_an_id_is_asked_for(server: Any, athanor: Any, answer: Any) -> None:
    rows = [TOKEN, {**TOKEN, "id": "tok_2"}, {**TOKEN, "id": "tok_3", "revoked_at": "2026-01-02T00:00:00Z"}]
    server.answer("GET /api/v1/tokens", answer({"items": rows, "next_cursor": None}))
    result = athanor("token", "revoke", "ci")
    assert (result.returncode, "give an id: tok_1, tok_2\n" in result.stderr) == (4, True), result.stderr
    server.answer("DELETE /api/v1/tokens/tok_2", answer(b"", 204))
    assert athanor("token", "revoke", "tok_2").returncode == 0
    assert "tok_3" not in athanor("token", "list").stdout
    assert "revoked 2026-01-02" in athanor("token", "list", "--all").stdout


def test_a_webhook_test_waits_for_the_answer(server: Any, athanor: Any, answer: Any) -> None:
    server.answer("POST /api/v1/webhooks/wh_1:test", answer(DELIVERY, 202))
    server.answer("GET /api/v1/deliveries/dlv_1", answer(DELIVERY), answer({**DELIVERY, "log": [TRY]}))
    result = athanor("webhook", "test", "chat")
    assert (result.returncode, "pending  HTTP 500" in result.stdout) == (1, True), result.stdout
    server.answer("GET /api/v1/deliveries/dlv_1", answer({**DELIVERY, "state": "delivered", "log": [TRY]}))
    assert athanor("webhook", "test", "chat").returncode == 0


def test_deliveries_are_filtered_by_state(server: Any, athanor: Any, answer: Any) -> None:
    rows = [DELIVERY, {**DELIVERY, "id": "dlv_2", "state": "failed", "log": [{**TRY, "error": "refused"}]}]
    server.answer("GET /api/v1/webhooks/wh_1/deliveries", answer({"items": rows, "next_cursor": None}))
    output = athanor("webhook", "deliveries", "chat", "--state", "failed").stdout
    assert "dlv_1" not in output
    assert "dlv_2" in output
    assert "refused" in output


def test_audit_filters_name_teams_and_times(server: Any, athanor: Any) -> None:
    arguments = ("--team", "red", "--action", "job", "--actor", "ada", "--after", "2026-01-31")
    athanor("audit", "list", *arguments, "--before", "2026-02-01T00:00:00+01:00", "--limit", "5")
    assert parse_qs(urlsplit(server.seen[-1].path).query) == {
        "team": ["team_1"], "action": ["job"], "actor": ["ada"], "after": ["2026-01-31T00:00:00+00:00"],
        "before": ["2026-02-01T00:00:00+01:00"], "limit": ["5"],
    }  # fmt: skip


def test_an_export_is_a_file_only_when_it_is_complete(server: Any, athanor: Any, answer: Any) -> None:
    lines = json.dumps(RECORD).encode() + b"\n"
    end = json.dumps({"end": {"lines": 1}}).encode() + b"\n"
    server.answer("GET /api/v1/audit:export", answer(lines))
    cut = athanor("audit", "export", "-o", "trail.jsonl")
    assert (cut.returncode, "cut off before its end" in cut.stderr) == (5, True), cut.stderr
    assert not list(athanor.home.glob("*trail*"))
    server.answer("GET /api/v1/audit:export", answer(lines + end))
    whole = athanor("audit", "export", "-o", "trail.jsonl", "--action", "project")
    assert whole.returncode == 0, whole.stderr
    assert "1 records in trail.jsonl" in whole.stderr
    assert (athanor.home / "trail.jsonl").read_bytes() == lines + end
    assert athanor("audit", "export").stdout.encode() == lines + end
    problem = {"code": "not_found", "detail": "there is no audit trail", "remedy": "ask an administrator"}
    server.answer("GET /api/v1/audit:export", answer(problem, 404))
    refused = athanor("audit", "export", "-o", "trail.jsonl")
    assert (refused.returncode, "ask an administrator" in refused.stderr) == (4, True)
    assert (athanor.home / "trail.jsonl").read_bytes() == lines + end
