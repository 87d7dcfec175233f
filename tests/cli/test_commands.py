"""Exit codes, output and retries of the commands."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import pytest

from athanor.cli.job_columns import COLUMNS
from tests.pages import REPOSITORY

JOB: dict[str, Any] = {
    "id": "job_1", "name": "tiny", "team": {"id": "team_1", "name": "demo"}, "project": "default",
    "status": "queued", "reason": None, "created_at": "2026-01-02T03:04:05Z", "attempt_count": 0,
    "progress": None, "warnings": [], "validation_loss": None,
}  # fmt: skip
SPEC = "version: 1\nname: tiny\ntraining: {steps: 5}\n"


def ended(status: str) -> dict[str, Any]:
    return {**JOB, "status": status, "reason": {"code": "completed", "message": "done", "remedy": None}}


def test_submit_sends_a_key_and_the_token_and_prints_the_job(server, athanor, answer) -> None:
    server.answer("POST /api/v1/jobs", answer(JOB, 201))
    Path(athanor.home / "job.yaml").write_text(SPEC)
    result = athanor("submit", "job.yaml", "--set", "training.steps=7", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["id"] == "job_1"
    sent = server.seen[-1]
    assert sent.headers["Authorization"] == "Bearer ath_test"
    assert re.fullmatch(r"cli-[0-9a-f-]{36}", sent.headers["Idempotency-Key"])
    assert json.loads(sent.body)["training"]["steps"] == 7


@pytest.mark.parametrize(
    ("status", "phase", "is_shown"),
    [("starting", "starting", True), ("starting", "running", False), ("running", "starting", False)],
)
def test_show_says_what_keeps_the_cluster_from_starting_a_job(
    server, athanor, answer, status: str, phase: str, is_shown: bool
) -> None:
    said = "Pod a-0 on n1 cannot be started. ImagePullBackOff: registry [x] does not answer"
    attempt = {"cluster": "iron", "phase": phase, "explanation": said}
    server.answer("GET /api/v1/jobs/job_1", answer({**JOB, "status": status, "attempts": [attempt]}))
    assert (f"iron: {said}" in athanor("show", "job_1").stdout) is is_shown


def test_show_has_the_address_of_the_runbook(server, athanor, answer) -> None:
    reason = {"code": "hang", "message": "It hung.", "remedy": "See it.", "runbook": "/docs/runbooks/reasons/hang"}
    server.answer("GET /api/v1/jobs", answer({"items": [JOB]}))
    server.answer("GET /api/v1/jobs/job_1", answer({**JOB, "status": "failed", "reason": reason, "attempts": []}))
    shown = athanor("show", "job_1").stdout
    assert f"reason: It hung. See it.\nrunbook: {server.url}/docs/runbooks/reasons/hang\n" in shown
    older = {**JOB, "status": "failed", "reason": {**reason, "runbook": ""}, "attempts": []}
    server.answer("GET /api/v1/jobs/job_1", answer(older))
    assert "runbook" not in athanor("show", "job_1").stdout


def test_submit_is_repeated_with_the_same_key_after_a_failure_in_between(server, athanor, answer) -> None:
    server.answer("POST /api/v1/jobs", answer({}, 503), answer({}, 502), answer(JOB, 201))
    Path(athanor.home / "job.yaml").write_text(SPEC)
    assert athanor("submit", "job.yaml", "--json").returncode == 0
    keys = [seen.headers["Idempotency-Key"] for seen in server.seen]
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_what_a_command_makes_is_asked_for_again_with_the_same_key_after_a_broken_connection(
    server, athanor, answer
) -> None:
    profile = {"id": "prof_1", "job": "job_1", "number": 1, "status": "requested", "steps": 3}
    busy = answer({"code": "request_in_progress"}, 409, {"Retry-After": "0"})
    server.answer("POST /api/v1/jobs/job_1:profile", answer(status=0), busy, answer(profile, 202))
    assert athanor("profile", "job_1", "--no-wait", "--json").returncode == 0
    keys = [seen.headers["Idempotency-Key"] for seen in server.seen]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert re.fullmatch(r"cli-[0-9a-f-]{36}", keys[0])


@pytest.mark.parametrize(("status", "code"), [("succeeded", 0), ("failed", 1), ("expired", 1), ("cancelled", 6)])
def test_waiting_ends_with_the_exit_code_of_the_job(server, athanor, answer, status: str, code: int) -> None:
    server.answer("POST /api/v1/jobs", answer(JOB, 201))
    running = {**JOB, "status": "running", "progress": {
        "step": 3, "steps_total": 5, "loss": 2.5, "tokens_per_second": 1000.0, "eta_seconds": 2.0, "phase": "training",
    }}  # fmt: skip
    server.answer("GET /api/v1/jobs/job_1", answer(JOB), answer({}, 503), answer(running), answer(ended(status)))
    Path(athanor.home / "job.yaml").write_text(SPEC)
    result = athanor("submit", "job.yaml", "--wait")
    assert result.returncode == code, result.stderr
    assert "step 3/5  training loss 2.500  1,000 tokens/s  2.0 s left" in result.stdout


def test_with_json_every_line_of_a_wait_is_an_object(server, athanor, answer) -> None:
    server.answer("GET /api/v1/jobs/job_1", answer(JOB), answer({**JOB, "status": "running"}), answer(ended("failed")))
    result = athanor("watch", "job_1", "--json")
    assert result.returncode == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["status"] for line in lines] == ["queued", "running", "failed"]


def test_several_jobs_are_cancelled_in_one_call_and_a_refusal_is_told(server, athanor, answer) -> None:
    stopping = {**JOB, "desired": "stop"}
    problem = {"status": 404, "code": "not_found", "detail": "there is no job 'job_2'"}
    items = [
        {"id": "job_1", "status": 202, "job": stopping, "problem": None},
        {"id": "job_2", "status": 404, "job": None, "problem": problem},
    ]
    server.answer("POST /api/v1/jobs:cancel", answer({"items": items}))
    result = athanor("cancel", "job_1", "job_2")
    assert result.returncode == 2
    assert result.stdout.splitlines() == ["job_1 is queued, wanted: stop", "job_2: there is no job 'job_2'"]
    assert result.stderr.splitlines() == ["athanor: 1 of 2 refused: job_2"]
    assert json.loads(server.seen[-1].body) == {"ids": ["job_1", "job_2"]}


def test_a_retry_makes_a_new_job_with_a_key_of_its_own(server, athanor, answer) -> None:
    server.answer("POST /api/v1/jobs/job_1:retry", answer({**JOB, "id": "job_9"}, 201))
    result = athanor("retry", "job_1")
    assert result.returncode == 0, result.stderr
    assert "submitted job_9" in result.stdout
    assert server.seen[-1].headers["Idempotency-Key"].startswith("cli-")


def test_a_fork_sends_what_differs(server, athanor, answer) -> None:
    server.answer("POST /api/v1/jobs/job_1:fork", answer({**JOB, "id": "job_9"}, 201))
    settings = ["--set", "training.steps=50", "--set", "training.optimizer.lr=0.001", "--set", "labels=null"]
    result = athanor("fork", "job_1", *settings, "--name", "007", "--idempotency-key", "once")
    assert result.returncode == 0, result.stderr
    assert "submitted job_9" in result.stdout
    training = {"steps": 50, "optimizer": {"lr": 0.001}}
    assert json.loads(server.seen[-1].body) == {"changes": {"training": training, "labels": None, "name": "007"}}
    assert server.seen[-1].headers["Idempotency-Key"] == "once"


def test_the_list_is_of_one_team(server, athanor, answer) -> None:
    server.answer("GET /api/v1/jobs", answer({"items": [], "next_cursor": None}))
    assert athanor("list", "--team", "research").returncode == 0
    assert "team=research" in server.seen[-1].path


def test_the_list_is_of_ones_own_jobs_in_a_chosen_order(server, athanor, answer) -> None:
    server.answer("GET /api/v1/jobs", answer({"items": [], "next_cursor": None}))
    assert athanor("list", "--mine", "--sort", "-loss").returncode == 0
    assert "created_by=%40me" in server.seen[-1].path
    assert "sort=-loss" in server.seen[-1].path
    both = athanor("list", "--mine", "--by", "ada")
    assert both.returncode == 2
    assert "give one of them" in both.stderr


def test_a_shell_can_complete_commands(athanor) -> None:
    athanor.environment["_ATHANOR_COMPLETE"] = "source_bash"
    script = athanor()
    assert script.returncode == 0, script.stderr
    assert "_ATHANOR_COMPLETE=complete_bash" in script.stdout


def test_the_columns_of_the_list_are_those_of_the_dashboard(server, athanor, answer) -> None:
    job = {
        "id": "job_1", "name": "tiny", "status": "running", "reason": None, "labels": {"env": "prod"},
        "priority": "normal", "created_by": "ada", "cluster": "local", "attempt_count": 2, "ran_seconds": 90,
        "running_since": None, "created_at": "2026-01-01T00:00:00Z", "validation_loss": {"before": 6.0, "after": 0.0},
        "progress": {"loss": 2.5, "validation_loss": 3.5, "tokens_per_second": 1234, "mean_mfu": 0.25},
        "resolved_spec": {"training": {"steps": 50, "optimizer": {"name": "adamw"}}},
    }  # fmt: skip
    server.answer("GET /api/v1/jobs", answer({"items": [job], "next_cursor": None}))
    source = (REPOSITORY / "frontend/src/features/jobs/lib/columns.tsx").read_text()
    ids = re.findall(r'\bid: "([a-z_]+)"', source[: source.index("DEFAULT_COLUMNS")])
    assert ids == list(COLUMNS)
    chosen = (
        "loss,validation_loss,mean_rate,mfu,ran,person,labels,spec.training.steps,spec.training.optimizer,spec.none"
    )
    output = athanor("list", "--columns", chosen).stdout
    for words in ("2.5000", "0.0000", "1,234", "25.0%", "1m 30s", "ada", "env=prod", "training.steps", "50", "adamw"):
        assert words in output, output
    assert "expand=resolved_spec" in server.seen[-1].path
    assert athanor("list", "--columns", ",".join(COLUMNS)).returncode == 0
    assert "expand" not in server.seen[-1].path
    before = len(server.seen)
    for wrong in ("colour", "loss,", "spec."):
        refused = athanor("list", "--columns", wrong)
        assert (refused.returncode, "choose of loss, validation_loss" in refused.stderr) == (2, True)
    assert len(server.seen) == before


def test_a_refused_spec_lists_every_field_and_exits_with_2(server, athanor, answer) -> None:
    problem = {
        "status": 422, "code": "invalid_spec", "detail": "The spec has 2 errors.", "remedy": "Correct them.",
        "errors": [
            {"pointer": "/training/stepz", "code": "unknown_field", "detail": "unknown; did you mean steps?"},
            {"pointer": "/name", "code": "missing", "detail": "is required"},
        ],
    }  # fmt: skip
    server.answer("POST /api/v1/jobs", answer(problem, 422))
    Path(athanor.home / "job.yaml").write_text(SPEC)
    result = athanor("submit", "job.yaml")
    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        "athanor: The spec has 2 errors: Correct them.",
        "  /training/stepz: unknown; did you mean steps?",
        "  /name: is required",
    ]


@pytest.mark.parametrize(("status", "code"), [(401, 3), (403, 3), (404, 4), (409, 2), (422, 2), (500, 5)])
def test_an_error_of_the_server_has_its_exit_code_and_one_line(server, athanor, answer, status, code) -> None:
    server.answer("GET /api/v1/jobs/job_1", answer({"detail": "No.", "code": "c", "remedy": "Do it."}, status))
    result = athanor("show", "job_1")
    assert result.returncode == code
    assert result.stderr.startswith("athanor: No: Do it.")
    assert len(result.stderr.splitlines()) == 1


def test_a_submit_whose_answer_was_lost_tells_how_to_repeat_it_safely(server, athanor, answer) -> None:
    server.answer("POST /api/v1/jobs", answer({"detail": "Broken."}, 500))
    Path(athanor.home / "job.yaml").write_text(SPEC)
    result = athanor("submit", "job.yaml")
    assert result.returncode == 5
    assert f"--idempotency-key {server.seen[-1].headers['Idempotency-Key']}" in result.stderr


def test_without_a_server_or_token_the_remedy_is_named(athanor) -> None:
    del athanor.environment["ATHANOR_TOKEN"]
    result = athanor("list")
    assert result.returncode == 3
    assert "athanor login" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["submit"], ["submit", "--preset", "x", "y.yaml"], ["nosuch"], ["list", "--limit", "0"]]
)
def test_wrong_usage_exits_with_2(athanor, arguments: list[str]) -> None:
    assert athanor(*arguments).returncode == 2


def test_login_keeps_the_token_in_a_file_only_its_owner_reads(server, athanor, answer) -> None:
    server.answer("GET /api/v1/jobs", answer({"items": [], "next_cursor": None}))
    url = athanor.environment.pop("ATHANOR_URL")
    del athanor.environment["ATHANOR_TOKEN"]
    assert athanor("login", url, "--token", "-", given="ath_secret\n").returncode == 0
    path = athanor.home / ".config" / "athanor" / "config.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    result = athanor("list")
    assert result.returncode == 0, result.stderr
    assert server.seen[-1].headers["Authorization"] == "Bearer ath_secret"
    assert "ath_secret" not in result.stdout + result.stderr
    again = athanor("login", "--token", "-", given="ath_other\n")
    assert f"logged in to {url}" in again.stdout, again.stderr


def test_login_by_password_asks_for_the_platform_role_only_when_told(server, athanor, answer) -> None:
    team = {"id": "team_1", "name": "demo"}
    server.answer("GET /api/v1/session", answer({"csrf_token": "c"}))
    server.answer("POST /api/v1/session", answer({"csrf_token": "c", "teams": [team]}))
    server.answer("POST /api/v1/tokens", answer({"token": "ath_made"}, 201))
    server.answer("GET /api/v1/jobs", answer({"items": [], "next_cursor": None}))
    for option in ([], ["--platform"], ["--platform-part", "clusters"]):
        url = athanor.environment["ATHANOR_URL"]
        done = athanor("login", url, "--username", "admin", *option, given="secret\n")
        assert done.returncode == 0, done.stderr
    asked = [json.loads(seen.body) for seen in server.seen if seen.path == "/api/v1/tokens"]
    assert "scopes" not in asked[0]
    team_scopes = ["read", "submit", "artifacts", "admin"]
    parts = ["clusters", "quotas", "budgets", "people", "audit"]
    assert asked[1]["scopes"] == [*team_scopes, *(f"platform:{part}" for part in parts)]
    assert asked[2]["scopes"] == [*team_scopes, "platform:clusters"]
    wrong = athanor("login", url, "--username", "admin", "--platform-part", "quota", given="secret\n")
    assert (wrong.returncode, "is none of clusters, quotas" in wrong.stderr) == (2, True)
    useless = athanor("login", url, "--token", "ath_x", "--platform")
    assert (useless.returncode, "give --username too" in useless.stderr) == (2, True)


def test_login_by_password_asks_for_the_second_factor(server, athanor, answer) -> None:
    needed = {"code": "second_factor_required", "kinds": ["authenticator_app"], "detail": "d", "remedy": "r"}
    server.answer("GET /api/v1/session", answer({"csrf_token": "c"}))
    server.answer("POST /api/v1/session", answer(needed, 401))
    signed_in = {"csrf_token": "c", "teams": [{"id": "team_1", "name": "demo"}]}
    server.answer("POST /api/v1/session:second-factor", answer(signed_in))
    server.answer("POST /api/v1/tokens", answer({"token": "ath_made"}, 201))
    server.answer("GET /api/v1/jobs", answer({"items": [], "next_cursor": None}))
    url = athanor.environment["ATHANOR_URL"]
    done = athanor("login", url, "--username", "ada", given="secret\n123 456\n")
    assert done.returncode == 0, done.stderr
    (sent,) = [json.loads(seen.body) for seen in server.seen if seen.path == "/api/v1/session:second-factor"]
    assert sent == {"code": "123 456"}
    wrong = {"code": "wrong_second_factor", "detail": "the code is not correct", "remedy": "wait for the next"}
    server.answer("POST /api/v1/session:second-factor", answer(wrong, 401))
    refused = athanor("login", url, "--username", "ada", given="secret\n1\n")
    assert (refused.returncode, "the code is not correct: wait for the next" in refused.stderr) == (3, True)
    server.answer("POST /api/v1/session", answer({**needed, "kinds": ["passkey"]}, 401))
    browser_only = athanor("login", url, "--username", "ada", given="secret\n")
    assert (browser_only.returncode, "make a token in the dashboard" in browser_only.stderr) == (3, True)


def test_login_shows_why_no_token_was_made_and_what_to_do(server, athanor, answer) -> None:
    server.answer("GET /api/v1/session", answer({"csrf_token": "c"}))
    server.answer("POST /api/v1/session", answer({"csrf_token": "c", "teams": [{"id": "team_1", "name": "demo"}]}))
    refusal = {"code": "too_many_tokens", "detail": "ada has 50 valid tokens", "remedy": "revoke some"}
    server.answer("POST /api/v1/tokens", answer(refusal, 409))
    done = athanor("login", athanor.environment["ATHANOR_URL"], "--username", "ada", given="secret\n")
    assert done.returncode == 3
    assert "ada has 50 valid tokens: revoke some" in done.stderr


def test_login_refuses_a_wrong_token_and_writes_nothing(server, athanor, answer) -> None:
    server.answer("GET /api/v1/jobs", answer({"detail": "The token is not valid."}, 401))
    result = athanor("login", athanor.environment["ATHANOR_URL"], "--token", "ath_wrong")
    assert result.returncode == 3
    assert not (athanor.home / ".config" / "athanor" / "config.json").exists()


def test_logs_follow_to_the_last_line_of_an_ended_job(server, athanor, answer) -> None:
    def page(*texts: str, after: str) -> Any:
        items = [
            {"cursor": after, "time": "2026-01-02T03:04:05Z", "attempt": 1, "rank": 0, "stream": "stdout", "text": t}
            for t in texts
        ]
        return answer({"items": items, "next_after": after})

    server.answer(
        "GET /api/v1/jobs/job_1/logs",
        page("one", after="1"), page("two [x]", after="2"), page(after="2"), page("three", after="3"), page(after="3"),
    )  # fmt: skip
    server.answer("GET /api/v1/jobs/job_1", answer({**JOB, "status": "running"}), answer(ended("succeeded")))
    result = athanor("logs", "job_1", "-f")
    assert result.returncode == 0, result.stderr
    assert [line.split("] ", 1)[1] for line in result.stdout.splitlines()] == ["one", "two [x]", "three"]


def test_show_adds_up_where_the_time_went(server, athanor, answer) -> None:
    none = {f"{name}_seconds": 0.0 for name in ("preparing", "evaluation", "checkpoint", "export", "finishing")}
    timings = {
        **none, "total_seconds": 1603.0, "queued_seconds": 2.0, "startup_seconds": 94.0,
        "startup": {"launch": 90.0, "first_step": 4.0}, "training_seconds": 1000.0, "paused_seconds": 500.0,
        "lost_seconds": 7.0,
    }  # fmt: skip
    server.answer("GET /api/v1/jobs/job_1", answer({**JOB, "timings": timings}))
    shown = athanor("show", "job_1").stdout.splitlines()
    assert shown[-6:] == [
        "time: 26m 43s",
        "     2.0 s  queued",
        "    1m 34s  start-up (launch 1m 30s, first_step 4.0 s)",
        "   16m 40s  training",
        "    8m 20s  paused",
        "     7.0 s  lost, not saved",
    ]


def test_a_job_is_found_by_its_name_or_a_part_of_its_id(server, athanor, answer) -> None:
    first, second = f"job_{'01M85RP8ER4W57CYDNTAGVW9B9'}", f"job_{'01M85RP8ER4W57CYDNTAGVW9C7'}"
    listed = [
        {"id": job_id, "name": name, "status": "queued", "created_at": "2026-01-02T03:04:05Z"}
        for job_id, name in ((first, "demo"), (second, "demo-2"))
    ]
    server.answer("GET /api/v1/jobs", answer({"items": listed, "next_cursor": None}))
    server.answer(f"GET /api/v1/jobs/{first}", answer({**JOB, "id": first}))
    for text in ("demo", "VW9B9", "vw9b9", first):
        shown = athanor("show", text)
        assert (shown.returncode, first in shown.stdout) == (0, True), shown.stderr
    assert sum(seen.path.startswith("/api/v1/jobs?") for seen in server.seen) == 3, "a complete id needs no search"
    several = athanor("cancel", "job_01M85RP8ER")
    assert (several.returncode, "2 jobs match 'job_01M85RP8ER', give an id" in several.stderr) == (4, True)
    assert first in several.stderr and second in several.stderr
    none = athanor("show", "dem")
    assert (none.returncode, "no job has the name 'dem'" in none.stderr) == (4, True)
    assert all(seen.method == "GET" for seen in server.seen)
