"""Traces of chosen steps, on every rank: named from the start of a run, or requested while it runs."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import platform_run, tiny_training
from tests.trainer.test_agent_process import agent, workers_of
from tests.trainer.test_standalone import ROOT, write_job
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import ProfileManifest
from trainer.contract.run import EXIT_STATUS, EndClass


def profiled(folder: Path, steps: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer", "job.yaml", "--output", "out", "--data", "text.txt", "--profile", steps]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.slow
def test_each_rank_writes_a_trace_of_the_steps_asked_for(tmp_path: Path) -> None:
    write_job(tmp_path)
    ended = profiled(tmp_path, "3:4")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    paths = sorted((tmp_path / "out/profile").iterdir())
    assert [path.name for path in paths] == ["steps-3-4-rank-0.json", "steps-3-4-rank-1.json"]
    for path in paths:
        names = [event.get("name") for event in json.loads(path.read_text())["traceEvents"]]
        assert [name for name in names if str(name).startswith("step ")] == ["step 3", "step 4"]
        assert "aten::mm" in names


def test_steps_that_are_none_are_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    ended = profiled(tmp_path, "4:3")
    assert ended.returncode == 2
    assert "'4:3' is not FIRST:LAST" in ended.stderr


def opened(api: AgentApi, manifest: ProfileManifest) -> dict[str, list[dict[str, Any]]]:
    """The events of each trace, by the name of its file."""
    encryptor = Encryptor(api.keys.job)
    content = {
        file.path: b"".join(encryptor.decrypt(api.objects[part.key], part) for part in file.parts)
        for file in manifest.files
    }
    return {path: json.loads(gzip.decompress(packed))["traceEvents"] for path, packed in content.items()}


def assert_traced(api: AgentApi, steps: int) -> ProfileManifest:
    """One profile, of the same steps of both ranks."""
    manifest = ProfileManifest.model_validate(api.profiles[0])
    first, last = manifest.first_step, manifest.last_step
    assert (len(api.profiles), manifest.number, last - first + 1) == (1, 1, steps)
    traces = opened(api, manifest)
    assert sorted(traces) == [f"steps-{first}-{last}-rank-{rank}.json.gz" for rank in (0, 1)]
    for events in traces.values():
        names = [event.get("name") for event in events if str(event.get("name")).startswith("step ")]
        assert sorted(names) == sorted(f"step {step}" for step in range(first, last + 1))
    return manifest


@pytest.mark.slow
def test_a_killed_rank_costs_neither_the_run_nor_the_profile(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=200), processes=2, max_restarts_in_place=1)
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path / "work") as process:
        api.profile = {"number": 1, "steps": 50}
        api.wait_for(lambda: any(beat["step"] >= 1 for beat in api.heartbeats))
        assert not api.profiles
        trainers = sorted(workers_of(process), key=lambda child: child.cpu_times().user)
        os.kill(trainers[-1].pid, signal.SIGKILL)
        assert process.wait(120) == EXIT_STATUS[EndClass.COMPLETED]
        assert len(api.events("generation.started")) == 1
        assert_traced(api, 50)
        assert sorted(api.losses()) == list(range(1, 201))


@pytest.mark.slow
def test_a_run_that_ends_during_a_profile_gives_the_steps_that_there_were(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=30), processes=2)
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path / "work") as process:
        api.profile = {"number": 1, "steps": 50}
        assert process.wait(120) == EXIT_STATUS[EndClass.COMPLETED]
        manifest = ProfileManifest.model_validate(api.profiles[0])
        assert manifest.last_step == 30
        assert len(opened(api, manifest)) == 2
