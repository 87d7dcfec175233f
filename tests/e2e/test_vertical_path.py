"""From a spec to text from the trained model, through the command line only."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg
import pytest

from deploy.local import secret_values
from deploy.local.environment import REPOSITORY
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json, write_json
from deploy.local.handle import wait_until
from tests.trainer.test_sinks import scalars

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_job_is_trained_downloaded_and_generates_text(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=30)
    watched = stack.athanor("watch", job_id)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    job = stack.json("show", job_id)
    assert job["status"] == "succeeded"
    assert job["attempt_count"] == 1
    assert job["validation_loss"]["after"] < job["validation_loss"]["before"]
    assert stack.steps_of(job_id) == list(range(1, 31))

    curves = Path(stack.json("tensorboard", job_id, "--output", str(tmp_path / "curves"))["folders"][job_id])
    assert sorted(scalars(curves, "train/loss")) == list(range(1, 31))

    model = tmp_path / "model"
    downloaded = stack.json("download", job_id, "--output", str(model))
    assert {file["path"] for file in downloaded["files"]} >= {"config.json", "model.safetensors", "tokenizer.json"}
    for file in downloaded["files"]:
        assert (model / file["path"]).stat().st_size == file["size"]
    first = stack.json("generate", str(model), "--tokens", "16", "--seed", "3")["text"]
    assert first.startswith("def ")
    assert len(first) > len("def ")
    assert stack.json("generate", str(model), "--tokens", "16", "--seed", "3")["text"] == first

    preview = stack.json("delete", job_id, "--preview")
    assert preview["artifacts"] >= 1
    assert preview["blocked_by"] == []
    deletion = stack.json("delete", job_id, "--permanently")
    assert stack.athanor("download", job_id, "--output", str(tmp_path / "again")).returncode == 4

    def is_purged() -> bool:
        return [row["state"] for row in stack.json("trash", "list") if row["id"] == deletion["id"]] == ["purged"]

    wait_until(is_purged, "the objects of the deleted job are gone", 60)
    assert stack.json("show", job_id)["status"] == "succeeded"


@pytest.mark.slow
def test_a_cancelled_job_ends_as_cancelled_with_its_exit_code(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=100_000)
    stack.wait_for_step(job_id, 3)
    assert stack.json("cancel", job_id)["id"] == job_id
    assert stack.athanor("watch", job_id).returncode == 6
    assert stack.job(job_id)["reason"]["code"] == "stopped_by_user"
    assert stack.job(job_id)["attempt_count"] == 1


@pytest.mark.slow
def test_the_same_key_gives_the_same_job_and_another_body_is_refused(stack, tmp_path: Path) -> None:
    path = stack.spec(tmp_path, steps=1)
    arguments = ("submit", str(path), "--idempotency-key", f"e2e-{tmp_path.name}")
    first, second = stack.json(*arguments), stack.json(*arguments)
    assert first["id"] == second["id"]
    changed = stack.athanor(*arguments, "--set", "training.steps=2")
    assert changed.returncode == 2
    assert stack.wait_for_end(first["id"])["status"] == "succeeded"


def environment_of(stack, service: str) -> dict[str, str]:
    variables = Path(f"/proc/{stack.pid(service)}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in variables if "=" in line)


def test_web_and_workers_hold_no_right_over_the_audit_trail(stack) -> None:
    forbidden = (
        "DELETE FROM accounts_auditevent", "UPDATE accounts_auditevent SET actor = 'eve'",
        "TRUNCATE accounts_auditevent", "DELETE FROM accounts_audithead",
        "ALTER TABLE accounts_auditevent DISABLE TRIGGER USER",
    )  # fmt: skip
    for service in ("web", "worker", "beat"):
        environment = environment_of(stack, service)
        assert "ATHANOR_MIGRATION_DATABASE_URL" not in environment
        with psycopg.connect(environment["DATABASE_URL"], autocommit=True) as connection:
            for sql in forbidden:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(sql)
    result = subprocess.run(
        [sys.executable, "manage.py", "verify_audit"], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "the audit trail is whole" in result.stdout
    assert "may" not in result.stdout.partition("Set ATHANOR")[2], "its role has rights that it should not have"


def test_credentials_are_for_the_owner_only(stack) -> None:
    for name in ("credentials.json", "secrets.json"):
        assert stat.S_IMODE((stack.data_dir / name).stat().st_mode) == 0o600


def test_no_new_master_key_is_made_beside_keys_that_another_one_encrypted(stack, tmp_path: Path) -> None:
    assert stack.wait_for_end(stack.submit(tmp_path, steps=1))["status"] == "succeeded"  # its team has a key now
    folder, environment = DataFolder(tmp_path), environment_of(stack, "worker")
    secrets = read_json(stack.data_dir / "secrets.json")
    del secrets["master_key"], environment["ATHANOR_MASTER_KEY"]
    write_json(folder.root / "secrets.json", secrets)
    with pytest.raises(StackError, match="restore the file from a copy"):
        secret_values.load_or_make_master_key(folder, REPOSITORY, environment)
    assert read_json(folder.root / "secrets.json") == secrets


def test_what_the_stores_hold_of_a_job_cannot_be_read_without_its_key(stack, tmp_path: Path) -> None:
    """The bytes on disk of every object: no tensor name, no JSON field of the model's files."""
    job_id = stack.submit(tmp_path, steps=5)
    assert stack.wait_for_end(job_id)["status"] == "succeeded"
    files = [path for path in stack.folder.objects.rglob("*.data") if path.stat().st_size > 0]
    assert files
    readable = [
        path
        for path in files
        if any(word in path.read_bytes() for word in (b"embed_tokens", b"vocab_size", b"__metadata__"))
    ]
    assert readable == []


def test_the_dashboard_and_the_health_addresses_answer(stack) -> None:
    assert httpx.get(f"{stack.url}/healthz").status_code == 200
    assert httpx.get(f"{stack.url}/readyz").status_code == 200
    assert "<html" in httpx.get(f"{stack.url}/").text
    schema = httpx.get(f"{stack.url}/api/schema/", headers={"Accept": "application/vnd.oai.openapi+json"})
    assert json.loads(schema.text)["openapi"].startswith("3.")
