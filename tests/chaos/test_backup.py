"""The rehearsal of a disaster, with real training: back up, destroy everything, restore elsewhere, train on.

Part of `make chaos`; the short one is tests/control_plane/backups/test_rehearsal.py.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.environment import REPOSITORY, with_repository_on_path
from deploy.local.folder import read_json, write_json
from deploy.local.handle import wait_until
from tests.bench.platform_stack import settings_of
from tests.e2e.conftest import Stack
from tests.e2e.figures import events_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]
LONG = 100_000  # steps: the job is running whenever it is looked at
SAVED_EVERY = 10  # steps, as in the spec of these tests


def manage(stack: Stack, *arguments: str) -> str:
    """Run a command of manage.py as an operator of this stack does."""
    result = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=REPOSITORY,
        env=with_repository_on_path({**stack.environment, **settings_of(stack)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def download(stack: Stack, job_id: str, folder: Path) -> dict[str, str]:
    """Download a model. Return the digest of each of its files, without the signature, of which no two are equal."""
    stack.json("download", job_id, "--output", str(folder))
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "model.sig"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def checkpoints(stack: Stack, job_id: str) -> list[int]:
    return sorted(row["step"] for row in stack.get(f"/jobs/{job_id}/checkpoints")["items"])


def destroy(stack: Stack) -> None:
    stack.kill_everything()
    shutil.rmtree(stack.data_dir)


def with_the_keys_of(old: Stack, data_dir: Path) -> Stack:
    """Return a stack of its own, not started, with what an operator has stored apart from the backup."""
    secrets = read_json(old.data_dir / "secrets.json")
    data_dir.mkdir(mode=0o700)
    write_json(data_dir / "secrets.json", {name: secrets[name] for name in ("master_key", "secret_key")})
    return Stack(data_dir)


def test_everything_is_lost_while_a_job_trains(tmp_path: Path) -> None:
    old = Stack(tmp_path / "old")
    old.up()
    try:
        finished = old.submit(tmp_path)
        assert old.wait_for_end(finished)["status"] == "succeeded"
        model = download(old, finished, tmp_path / "before")
        key = tmp_path / "team.pub.pem"
        key.write_text(old.athanor("signing-key", "show", "--public").stdout)
        running = old.submit(tmp_path, steps=LONG)
        wait_until(lambda: checkpoints(old, running), "a checkpoint of the running job", 120)
        place = tmp_path / "backups"
        manage(old, "backup", str(place))  # while it trains, saves, and retires older checkpoints
        step = max(checkpoints(old, running))
        wait_until(lambda: max(checkpoints(old, running)) > step, "it trains on after the backup", 120)
        new = with_the_keys_of(old, tmp_path / "new")
    finally:
        destroy(old)
    assert "is intact" in manage_without_database(new, "verify_backup", str(place))

    new.up(only_stores=True)
    try:
        assert "is restored" in manage(new, "restore", str(place))
        new.down()
        new.up()
        assert download(new, finished, tmp_path / "after") == model
        new.json("model", "verify", str(tmp_path / "after"), "--key", str(key))  # signed by the restored key
        resumed = after_restart(new, running)
        assert resumed <= step, "it resumes from a checkpoint that is in the backup"
        assert resumed % SAVED_EVERY == 0
        assert resumed > 0
        new.wait_for_step(running, resumed + 2 * SAVED_EVERY)
        assert "the audit trail is whole" in manage(new, "verify_audit")
        assert new.json("cancel", running)["id"] == running
        assert new.wait_for_end(running)["status"] == "cancelled"
    finally:
        new.kill_everything()


def manage_without_database(stack: Stack, *arguments: str) -> str:
    """Run a command while no store runs."""
    keys = read_json(stack.data_dir / "secrets.json")
    environment = {
        **stack.environment,
        "ATHANOR_MASTER_KEY": keys["master_key"],
        "ATHANOR_SECRET_KEY": keys["secret_key"],
        "DATABASE_URL": "postgres://nobody@127.0.0.1:1/none",
    }
    command = [sys.executable, "manage.py", *arguments]
    result = subprocess.run(
        command, cwd=REPOSITORY, env=with_repository_on_path(environment), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def after_restart(stack: Stack, job_id: str) -> int:
    """Wait until a lost job trains again. Return the step of the checkpoint that its second attempt began with."""

    def trains() -> bool:
        job = stack.job(job_id)
        assert job["status"] not in ("failed", "cancelled", "expired"), job["reason"]
        return job["attempt_count"] == 2 and job["status"] == "running"

    wait_until(trains, f"{job_id} runs again", 180)
    attempts = stack.get(f"/jobs/{job_id}")["attempts"]
    assert [attempt["reason"]["code"] for attempt in attempts if attempt["number"] == 1] == ["unknown_loss"]
    events = events_of(stack, job_id)
    return int([event["data"]["step"] for event in events if event["type"] == "training.started"][-1])
