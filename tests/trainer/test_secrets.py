"""A job's secrets are in its processes' variables, and in nothing they say."""

import os
from pathlib import Path
from typing import Any

import pytest

from trainer.agent.logs import LogFollower
from trainer.agent.worker_process import run_worker
from trainer.contract.environment import secret_variable
from trainer.contract.run import DataKeys, EndClass
from trainer.reporting.spool import SpoolWriter
from trainer.resilience.assignment import Assignment, HttpConnection
from trainer.resilience.store_server import StoreAddress

CANARY = "hf_CANARY-4f1d9c"


def assignment(tmp_path: Path, **secrets: str) -> Assignment:
    nothing: Any = None  # what is tested here asks for neither
    return Assignment(
        run=nothing, training=nothing, job_key="k", connection=HttpConnection("http://127.0.0.1:1", "t"),
        restart_count=0, rank=0, local_rank=0,
        store=StoreAddress("127.0.0.1", 0), sources=[], work=tmp_path, stamp="s", model_folder=None,
        secrets=secrets,
    )  # fmt: skip


def test_a_worker_finds_them_in_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def work(_: Assignment) -> EndClass:
        seen.update({name: value for name, value in os.environ.items() if name.startswith("ATHANOR_JOB_SECRET_")})
        return EndClass.COMPLETED

    monkeypatch.setattr("trainer.training.worker.work", work)
    monkeypatch.setenv("ATHANOR_JOB_SECRET_HF_TOKEN", "before")  # so that it is gone after the test
    with pytest.raises(SystemExit) as ended:
        run_worker(assignment(tmp_path, **{"hf-token": CANARY}))
    assert (ended.value.code, seen) == (0, {"ATHANOR_JOB_SECRET_HF_TOKEN": CANARY})
    assert secret_variable("s3-key-2") == "ATHANOR_JOB_SECRET_S3_KEY_2"


def test_what_holds_them_does_not_show_them(tmp_path: Path) -> None:
    keys = DataKeys(job="job-key-canary", dataset="set-key-canary", secrets={"hf-token": CANARY})
    shown = repr(assignment(tmp_path, **keys.secrets)) + repr(keys) + str(keys)
    assert CANARY not in shown
    assert "key-canary" not in shown


def test_they_are_masked_in_all_that_is_logged(tmp_path: Path) -> None:
    logs = LogFollower(SpoolWriter(tmp_path, "logs", "agent"))
    logs.redact_values([CANARY, f"{CANARY}-longer", "first line\nsecond line", "abc"])
    logs.write_line(f"user_error: 401 for {CANARY}-longer and {CANARY}; second line; abc")
    logs.drain(0.1)
    written = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
    assert "user_error: 401 for *** and ***; ***; abc" in written
    assert CANARY not in written
