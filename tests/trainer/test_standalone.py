"""`python -m trainer job.yaml`: a folder in, a model out, no platform."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer.runs import TINY, FinishedRun, tiny_text
from trainer.client.local import KEY_FILE
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.errors import TrainerError
from trainer.standalone.job_file import read_job

ROOT = Path(__file__).resolve().parents[2]


def write_job(folder: Path, **changes: Any) -> Path:
    job = {
        "version": 1, "name": "tiny", "team": "demo", "priority": "high", "labels": {"a": "b"},
        "resources": {"cluster": "local", "nodes": 1, "processes_per_node": 2, "accelerator": "cpu"},
        "checkpoint": {"every_steps": 10}, "retry": {"max_charged": 1, "restarts_in_place": 1}, "training": TINY,
    }  # fmt: skip
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**job, **changes}))
    (folder / "text.txt").write_text(tiny_text())
    return path


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", "job.yaml", "--output", "out", "--data", "text.txt"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_a_job_file_becomes_a_model_and_a_second_run_with_more_steps_resumes(tmp_path: Path) -> None:
    write_job(tmp_path)
    process = start(tmp_path)
    shown, _ = process.communicate(timeout=120)
    assert process.returncode == 0, shown
    assert "step 20/20  loss " in shown
    assert "checkpoint.saved: step 20" in shown
    assert "completed; the files of this run are in" in shown
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        p.name for p in (tmp_path / "out/model").iterdir()
    }
    assert stat.S_IMODE((tmp_path / "out" / KEY_FILE).stat().st_mode) == 0o600
    write_job(tmp_path, training={**TINY, "steps": 24})
    process = start(tmp_path)
    assert process.wait(120) == 0
    run = FinishedRun(EndClass.COMPLETED, tmp_path / "out")
    assert sorted(run.series("train/loss")) == list(range(1, 25))
    assert [event["step"] for event in run.events("checkpoint.saved")] == [10, 20, 24]


def test_ctrl_c_saves_and_ends_as_stopped(tmp_path: Path) -> None:
    write_job(tmp_path, training={**TINY, "steps": 100_000}, checkpoint={"every_steps": 100_000})
    process = start(tmp_path)
    for line in process.stdout:
        if line.startswith("step "):
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=60)
    assert process.returncode == EXIT_STATUS[EndClass.STOPPED]
    assert len(FinishedRun(EndClass.STOPPED, tmp_path / "out").checkpoints) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {**TINY, "stepz": 3}}, "training.stepz: Extra inputs are not permitted (it is 3)"),
        ({"training": {**TINY, "steps": "many"}}, "training.steps: Input should be a valid integer"),
        ({"training": {**TINY, "tokens_per_step": 100}}, "tokens_per_step 100 is not a multiple of sequence_length 32"),
        ({"resources": {"nodes": 2}}, "resources.nodes: 2 nodes need the platform"),
        ({"resources": {"processes_per_node": 0}}, "resources.processes_per_node: Input should be greater"),
        ({"checkpoint": {"every_steps": -1}}, "checkpoint.every_steps: Input should be greater than or equal to 1"),
        ({"retry": 3}, "retry: 3 must be a mapping of fields"),
        ({"resources": [1]}, "resources: [1] must be a mapping of fields"),
        ({"retry": {"restarts_in_place": "x"}}, "retry.restarts_in_place: 'x' must be a whole number"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(TrainerError) as raised:
        read_job(write_job(tmp_path, **changes))
    assert raised.value.end_class is EndClass.BAD_SPEC
    assert message in str(raised.value)


def test_all_wrong_fields_are_named_at_once(tmp_path: Path) -> None:
    job = write_job(tmp_path, checkpoint={"every_steps": 0}, training={**TINY, "steps": 0, "seed": -1})
    with pytest.raises(TrainerError) as raised:
        read_job(job)
    assert all(name in str(raised.value) for name in ("checkpoint.every_steps", "training.steps", "training.seed"))


@pytest.mark.parametrize(
    ("content", "message"),
    [("training: [", "is not YAML"), ("- 1", "no field `training`"), ("", "no field `training`")],
)
def test_a_file_that_is_no_job_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "job.yaml").write_text(content)
    with pytest.raises(TrainerError, match=message):
        read_job(tmp_path / "job.yaml")


def test_a_missing_job_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainerError, match=r"absent.yaml: No such file"):
        read_job(tmp_path / "absent.yaml")


def test_a_job_file_takes_sizes_with_units_and_names_what_is_none(tmp_path: Path) -> None:
    data = {**TINY["data"], "cache_bytes": "1.5 GiB"}
    _, settings = read_job(write_job(tmp_path, training={**TINY, "data": data}, time_limit_seconds="2h"))
    assert settings.training.data.cache_bytes == 1536 * 2**20
    path = write_job(tmp_path, training={**TINY, "data": {**data, "cache_bytes": "much"}})
    with pytest.raises(TrainerError, match=r"training\.data\.cache_bytes: must be a size.*40 GiB.*it is 'much'"):
        read_job(path)
