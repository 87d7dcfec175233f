"""The GPU kit, rehearsed on the CPU from a copy of its own: parts that passed are kept, and other numbers are found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu_kit.build import copy_source
from tests.gpu_kit.jobs import TOLERANCES, Job, differences
from tests.gpu_kit.schedule import write_result

REFERENCE, CASE = "reference dense fp32", "case dense fp32"


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit without wheels: the packages of this interpreter are used."""
    folder = tmp_path_factory.mktemp("kit")
    copy_source(folder)
    return folder


def run_kit(kit: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the kit outside of this project, in a folder with another trainer, which it must not use. Return how it
    ended, and the parts of its report."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(kit / "run.py"), "--device", "cpu", *arguments]
    other = kit / "other"
    for package in ("trainer", "tests"):
        (other / package).mkdir(parents=True, exist_ok=True)
        (other / package / "__init__.py").write_text("raise ImportError('another checkout')")
    ended = subprocess.run(command, cwd=other, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stderr
    return ended, json.loads((kit / "results" / "report.json").read_text())["parts"]


def test_a_run_without_time_leaves_everything_for_the_next(kit: Path) -> None:
    ended, parts = run_kit(kit, "--minutes", "0")
    assert ended.returncode == 0
    assert set(parts.values()) == {None}
    assert {"environment", "collectives", CASE, "case compiled bf16", "speed 8B fp8", "saves"} <= parts.keys()
    assert "left for the next call" in ended.stdout


def test_a_case_is_compared_with_the_cpu_and_kept_and_other_numbers_are_found(kit: Path) -> None:
    results = kit / "results"
    ended, parts = run_kit(kit, "--only", CASE)
    assert ended.returncode == 0, ended.stdout
    assert {name: part["state"] for name, part in parts.items()} == {REFERENCE: "passed", CASE: "passed"}
    assert parts[CASE]["figures"]["differences"] == {"train/loss": 0.0, "train/gradient_norm": 0.0}  # the same device

    again, kept = run_kit(kit, "--only", CASE)
    assert again.returncode == 0
    assert f"{CASE}: passed in" not in again.stdout
    assert kept == parts

    metrics = results / REFERENCE / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in lines:
        if "train/loss" in line["values"]:
            line["values"]["train/loss"] *= 1.001
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(AssertionError, match=r"train/loss of step \d.* 1\.0e-03 apart where 2e-04 is allowed"):
        differences(Job.finished(results / CASE), Job.finished(results / REFERENCE), TOLERANCES["fp32"])


def test_a_part_that_fails_does_not_stop_the_others(kit: Path) -> None:
    """A case is skipped if its reference did not pass, and repeated on request."""
    results = kit / "results"
    results.mkdir(exist_ok=True)
    write_result(results, "reference lora bf16", {"state": "failed", "because": "made up"})
    ended, parts = run_kit(kit, "--only", "case lora bf16")
    assert ended.returncode == 1
    assert parts["case lora bf16"]["state"] == "skipped"
    assert "reference lora bf16 did not pass" in ended.stdout
    _, repeated = run_kit(kit, "--only", "case lora bf16", "--again", "--minutes", "0")
    assert repeated["case lora bf16"] is None
