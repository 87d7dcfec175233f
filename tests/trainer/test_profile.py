"""Traces of chosen steps, on every rank."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.trainer.test_standalone import ROOT, write_job


def profiled(folder: Path, steps: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer", "job.yaml", "--output", "out", "--data", "text.txt", "--profile", steps]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


def test_each_rank_writes_a_trace_of_the_steps_asked_for(tmp_path: Path) -> None:
    write_job(tmp_path)
    ended = profiled(tmp_path, "3:4")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    paths = sorted((tmp_path / "out/profile").iterdir())
    assert [path.name for path in paths] == ["steps-3-4-rank-0.json", "steps-3-4-rank-1.json"]
    for path in paths:
        names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
        assert names.count("Optimizer.step#AdamW.step") == 2
        assert "aten::mm" in names


def test_steps_that_are_none_are_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    ended = profiled(tmp_path, "4:3")
    assert ended.returncode == 2
    assert "'4:3' is no FIRST:LAST" in ended.stderr
