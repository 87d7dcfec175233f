"""`athanor support-bundle`: what it contains, and that planted secrets are not in it."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from athanor.cli.redaction import redact, redact_text

JOB = "job_01HZZZZZZZZZZZZZZZZZZZZZZZ"
CANARY = "CanarY5ecret"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\nabc\n-----END RSA PRIVATE KEY-----"
SECRETS = [
    f"password={CANARY}",
    f'"password": "two {CANARY} words"',
    f"db_passwd: '{CANARY} x'",
    f"AWS_SECRET_ACCESS_KEY={CANARY}",
    f"clientSecret = {CANARY}",
    f"HF_TOKEN={CANARY}",
    f"ATHANOR_MASTER_KEY: {CANARY}",
    f"--api-key {CANARY}",
    f"--token {CANARY}",
    f"Authorization: Bearer {CANARY}",
    f"authorization: Basic {CANARY}",
    f"curl -H 'bearer {CANARY}'",
    f"postgres://athanor:{CANARY}@db.example:5432/athanor",
    f"redis://:{CANARY}@broker:6379/0",
    f"https://store.example/model?X-Amz-Credential={CANARY}&X-Amz-Signature={CANARY}",
    f"https://blob.example/x?sv=2020&sig={CANARY}",
    f"eyJhbGciOiJIUzI1NiJ9.{CANARY}{CANARY}.{CANARY}",
    "AKIAIOSFODNN7EXAMPLE",
    f"ath_{CANARY}0123456789",
    f"hf_{CANARY}0123456789",
    f"ghp_{CANARY}0123456789",
    f"sk-{CANARY}0123456789",
    f"whsec_{CANARY}0123456789",
    f"https://hooks.slack.com/services/T000/B000/{CANARY}",
    f"Set-Cookie: sessionid={CANARY}; Path=/",
    PEM,
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}",
    f"{CANARY}@people.example",
]  # fmt: skip
HARMLESS = [
    "step 12: loss 3.81, 10240 tokens/s, tokens_per_step=4096",
    "tokenizer: byte-level, vocabulary 512",
    "The object store did not respond within 10 s: https://store.example:9000/bucket/key",
    "node gpu-1 has 2 ECC errors; see /docs/runbooks/reasons/gpu_fault",
    "athanor show job_01HZZZZZZZZZZZZZZZZZZZZZZZ",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_replaced_in_text(text: str) -> None:
    shown = redact_text(f"before {text} after", [])
    assert CANARY not in shown
    assert "AKIA" not in shown
    assert "***" in shown
    assert shown.startswith("before ")


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_text_stays(text: str) -> None:
    assert redact_text(text) == text


def test_fields_that_hold_secrets_lose_their_texts_and_nothing_else() -> None:
    value = {
        "name": "demo",
        "env": {"HF_TOKEN": CANARY, "MODE": "fast"},
        "client_secret": {"nested": [CANARY], "length": 12},
        "tokens_per_second": 12.5,
        "token": "",
        "lines": [f"password={CANARY}"],
        f"https://u:{CANARY}@host/": True,
    }
    assert redact(value) == {
        "name": "demo",
        "env": {"HF_TOKEN": "***", "MODE": "fast"},
        "client_secret": {"nested": ["***"], "length": 12},
        "tokens_per_second": 12.5,
        "token": "",
        "lines": ["password=***"],
        "https://***@host/": True,
    }


def read_archive(file: Path) -> dict[str, str]:
    """Return the texts of an archive by their names, without the folder."""
    with tarfile.open(file) as tar:
        members = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar.getmembers()}
        return {name: content.read().decode() for name, content in members.items() if content}


def plant(server: Any, answer: Any) -> None:
    """Answer every request of the command, with secrets in each."""
    planted = {"detail": " | ".join(SECRETS), "password": CANARY, "status": "failed"}
    page = {"items": [planted], "next_cursor": None}
    path = f"/api/v1/jobs/{JOB}"
    server.answer(f"GET {path}", answer({**planted, "id": JOB, "attempts": [{"number": 1}]}))
    for name in ("timeline", "goodput", "cost", "metrics", "system", "preflights", "attempts/1/output"):
        server.answer(f"GET {path}/{name}", answer(planted))
    for name in ("checkpoints", "artifacts"):
        server.answer(f"GET {path}/{name}", answer(page))
    events = {"items": [planted], "next_after": 7}
    server.answer(f"GET {path}/events", answer(events), answer({"items": [], "next_after": 7}))
    server.answer(f"GET {path}/logs:download", answer("\n".join(SECRETS).encode()))
    for name in ("queue", "quotas", "quotas/settings", "admin/sweepers"):
        server.answer(f"GET /api/v1/{name}", answer(planted))
    cluster = {"id": "cls_1", "name": "iron", **planted}
    server.answer("GET /api/v1/clusters", answer({"items": [cluster], "next_cursor": None}))
    server.answer("GET /api/v1/clusters/cls_1", answer(planted))
    server.answer("GET /api/v1/clusters/cls_1/nodes", answer(page))
    for name in ("probes", "queue"):
        server.answer(f"GET /api/v1/clusters/cls_1/{name}", answer(planted))


def test_the_bundle_of_a_job_has_everything_but_planted_secrets(
    server: Any, athanor: Any, answer: Any, tmp_path: Path
) -> None:
    plant(server, answer)
    target = tmp_path / "case.tar.gz"
    done = athanor("support-bundle", JOB, "--output", str(target))
    assert done.returncode == 0, done.stderr
    files = read_archive(target)
    assert {name.partition("/")[0] for name in files} == {"README.txt", "manifest.json", "job", "platform"}
    assert {
        "job/job.json",
        "job/events.json",
        "job/log.txt",
        "job/output-1.json",
        "platform/clusters/iron/nodes.json",
    } <= set(files)
    for name, text in files.items():
        assert CANARY not in text, name
        assert "AKIA" not in text, name
    assert json.loads(files["job/job.json"])["status"] == "failed"
    manifest = json.loads(files["manifest.json"])
    assert set(manifest["files"]) == set(files) - {"README.txt", "manifest.json"}
    assert (manifest["not_read"], manifest["cut"]) == ([], [])
    assert target.stat().st_mode & 0o777 == 0o600


def test_the_token_of_the_caller_is_replaced_wherever_it_is(
    server: Any, athanor: Any, answer: Any, tmp_path: Path
) -> None:
    plant(server, answer)
    server.answer("GET /api/v1/queue", answer({"detail": f"x{athanor.environment['ATHANOR_TOKEN']}y"}))
    target = tmp_path / "case.tar.gz"
    assert athanor("support-bundle", "--output", str(target)).returncode == 0
    assert json.loads(read_archive(target)["platform/queue.json"]) == {"detail": "x***y"}


def test_what_a_token_may_not_read_is_listed(server: Any, athanor: Any, answer: Any, tmp_path: Path) -> None:
    plant(server, answer)
    for name in ("admin/sweepers", "clusters"):
        server.answer(f"GET /api/v1/{name}", answer({"code": "permission_denied", "detail": "no"}, 403))
    target = tmp_path / "case.tar.gz"
    done = athanor("support-bundle", "--output", str(target))
    assert done.returncode == 0, done.stderr
    assert "not included: platform/reconcilers.json (permission_denied)" in done.stdout
    refused = json.loads(read_archive(target)["manifest.json"])["not_read"]
    assert [each["file"] for each in refused] == ["platform/reconcilers.json", "platform/clusters.json"]


def test_a_long_log_is_cut_at_its_beginning_and_the_manifest_says_so(
    server: Any, athanor: Any, answer: Any, tmp_path: Path
) -> None:
    plant(server, answer)
    server.answer(f"GET /api/v1/jobs/{JOB}/logs:download", answer(b"".join(b"line %d\n" % n for n in range(20_005))))
    target = tmp_path / "case.tar.gz"
    assert athanor("support-bundle", JOB, "-o", str(target)).returncode == 0
    files = read_archive(target)
    assert files["job/log.txt"].splitlines()[0] == "line 5"
    assert files["job/log.txt"].splitlines()[-1] == "line 20004"
    assert json.loads(files["manifest.json"])["cut"] == ["job/log.txt"]


def test_no_logs_and_an_existing_file(server: Any, athanor: Any, answer: Any, tmp_path: Path) -> None:
    plant(server, answer)
    target = tmp_path / "case.tar.gz"
    assert athanor("support-bundle", JOB, "--no-logs", "-o", str(target)).returncode == 0
    assert not {"job/log.txt", "job/output-1.json"} & set(read_archive(target))
    before = target.read_bytes()
    again = athanor("support-bundle", JOB, "--no-logs", "-o", str(target))
    assert again.returncode == 2
    assert f"--output {target}: File exists: name another file" in again.stderr
    assert target.read_bytes() == before
