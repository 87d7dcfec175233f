"""`torchrun ... -m trainer job.yaml`: torchrun's own processes train, and what it starts again resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.trainer.runs import TINY, FinishedRun
from tests.trainer.test_standalone import ROOT, write_job
from trainer.contract.run import EndClass


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *arguments,
         "-m", "trainer", "job.yaml", "--output", "out", "--data", "text.txt"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.slow
def test_two_processes_train_one_model_and_a_killed_one_is_started_again(tmp_path: Path) -> None:
    write_job(tmp_path, training={**TINY, "steps": 300})
    process = start(tmp_path, "--max-restarts", "1", "--monitor-interval", "0.1")
    shown = []
    for line in process.stdout:
        shown.append(line)
        if line.startswith("checkpoint.saved: step 50"):
            psutil.Process(process.pid).children()[1].kill()
            break
    rest, _ = process.communicate(timeout=200)
    assert process.returncode == 0, "".join([*shown, rest])
    run = FinishedRun(EndClass.COMPLETED, tmp_path / "out")
    assert run.end["end_class"] == "completed"
    points = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    first_again = min(point["step"] for point in points if point["generation"] == 1)
    assert first_again > 50
    assert sorted(run.series("train/loss")) == list(range(1, 301))
    assert (tmp_path / "out/model/model.safetensors").exists()


@pytest.mark.slow
def test_a_stop_saves_and_is_no_failure(tmp_path: Path) -> None:
    write_job(tmp_path, training={**TINY, "steps": 100_000}, checkpoint={"every_steps": 100_000})
    process = start(tmp_path, "--max-restarts", "1")
    for line in process.stdout:
        if line.startswith("step "):
            for child in psutil.Process(process.pid).children():
                child.terminate()
            break
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 0, rest
    run = FinishedRun(EndClass.STOPPED, tmp_path / "out")
    assert run.end["end_class"] == "stopped"
    assert len(run.checkpoints) == 1
