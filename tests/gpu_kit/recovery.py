"""What a killed or stopped worker costs on the device, and what copies of its state to the host's memory reach."""

import os
import signal
import statistics
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.gpu_kit.jobs import Device, Job, fresh
from tests.gpu_kit.kernels import seconds_of
from tests.gpu_kit.schedule import descendants
from tests.gpu_kit.speed import Speed, share_datasets, training
from tests.trainer.runs import FinishedRun, lines_of
from trainer.checkpoint.host_memory import allocate, pin
from trainer.resilience.shadow_memory import ShadowMemory, digest_of

Figures = dict[str, Any]
LARGE = {"hidden_size": 1024, "num_layers": 20, "num_heads": 16, "num_kv_heads": 8, "intermediate_size": 2816}
"""0.3 billion parameters."""
KILLS = 3
STEPS_BETWEEN_KILLS = 6


def job_fields(device: Device, *, compile_model: bool) -> dict[str, Any]:
    """Return the `training` section of the model of 0.3 billion parameters, on the CPU of a small one."""
    fields = training(Speed("llama-1b", "bf16"), device)
    fields |= {"compile": compile_model, "tokenizer": {"vocab_size": 1024}}
    return fields | ({"model": {"shape": LARGE}, "sequence_length": 1024} if device == "cuda" else {})


def recovery(results: Path, device: Device) -> Figures:
    """Kill the worker again and again: seconds until the first step after each kill, with shadow checkpoints after
    each step, without and with a compiled model."""
    return {
        ("compiled" if compile_model else "not compiled"): _kills(
            fresh(results / f"recovery {compile_model}"), results, job_fields(device, compile_model=compile_model),
            device, signal.SIGKILL, KILLS,
        )
        for compile_model in (False, True)
    }  # fmt: skip


def hang(results: Path, device: Device) -> Figures:
    """Stop the worker for good: seconds until the agent reports it and until the next step."""
    folder = fresh(results / "hang")
    found = _kills(folder, results, job_fields(device, compile_model=False), device, signal.SIGSTOP, 1)
    (report,) = Job.finished(folder).events("progress.stalled")
    return {**found, "report": {name: value for name, value in report.items() if name != "stacks"}}


def _kills(
    folder: Path, results: Path, fields: dict[str, Any], device: Device, number: signal.Signals, count: int
) -> Figures:
    share_datasets(folder, results)
    job = Job(folder, fields, device, shadow=1, restarts=count)
    next_steps: list[float] = []
    restores: list[dict[str, Any]] = []
    phases: list[dict[str, float]] = []

    def act(run: FinishedRun) -> bool:
        for generation in range(count):
            _wait(job, partial(_has_steps, run, generation, STEPS_BETWEEN_KILLS))
            at = time.time()
            os.kill(_worker(job), number)
            _wait(job, partial(_first_step, run, at))
            next_steps.append(_first_step(run, at)[0]["at"] - at)
            restores.extend(_events(run, "checkpoint.restored", at))
            phases.append({event["phase"]: event["seconds"] for event in _events(run, "phase.finished", at)})
        return True

    job.kill_when(act)
    assert len(restores) == count, f"{len(restores)} of {count} restarts continued from a copy: {restores}"
    assert all(each["tier"] == "shadow" for each in restores), restores
    return {
        "seconds to the next step": next_steps, "restores": restores, "phases": phases,
        "step": statistics.median(job.run.series("time/step_seconds").values()),
        "waits for copies": statistics.median(job.run.series("time/shadow_seconds").values()),
        "longest wait for a copy": max(job.run.series("time/shadow_seconds").values()),
    }  # fmt: skip


def _wait(job: Job, condition: Callable[[], object]) -> None:
    while not condition():
        assert job.process.poll() is None, f"the run ended: {job.tail()}"
        time.sleep(0.02)  # between looks at files that another process writes


def _has_steps(run: FinishedRun, generation: int, count: int) -> bool:
    """Return whether the worker that was restarted so many times has taken so many steps."""
    if not (run.output / "metrics.jsonl").exists():
        return False
    points = [each for each in run.points() if each["generation"] == generation]
    return sum("train/loss" in each["values"] for each in points) >= count


def _first_step(run: FinishedRun, since: float) -> list[dict[str, Any]]:
    """Return the report of a worker's first step, if there was one after a time."""
    return [event for event in _events(run, "phase.finished", since) if event["phase"] == "first_step"]


def _events(run: FinishedRun, kind: str, since: float) -> list[dict[str, Any]]:
    """Return the data of the events of a type that were reported after a time, with that time as `at`."""
    found = [
        {**event["data"], "at": datetime.fromisoformat(event["time"]).timestamp()}
        for event in lines_of(run.output / "progress.jsonl") if event["type"] == kind
    ]  # fmt: skip
    return [event for event in found if event["at"] > since]


def _worker(job: Job) -> int:
    """Return the process of the rank: the one that has mapped the memory of its copies."""
    for pid in descendants(job.process.pid):
        maps = Path(f"/proc/{pid}/maps")
        if maps.exists() and "athanor-shadow" in maps.read_text():
            return pid
    raise AssertionError("no process has mapped memory for its copies")


def host_copies(device: Device) -> Figures:
    """Return what a copy of the state to memory that outlives the process reaches, in bytes per second, and how long
    a launched product waits while that memory is made ready."""
    size = 8 * 2**30 if device == "cuda" else 2**26
    memory = ShadowMemory.create("kit")
    assert memory is not None
    memory.open(size)
    slots = [torch.frombuffer(memory.data(slot), dtype=torch.uint8) for slot in range(2)]
    state = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    found: Figures = {"threads": torch.get_num_threads()}
    begin = time.perf_counter()
    allocate(slots[0])
    found["allocation"] = size / (time.perf_counter() - begin)
    begin = time.perf_counter()
    slots[1].copy_(state)
    found["first copy, not pinned"] = size / (time.perf_counter() - begin)
    found["copy, not pinned"] = size / seconds_of(lambda: slots[1].copy_(state), device, rounds=2)
    if device == "cuda":
        begin = time.perf_counter()
        pin(slots[0])
        found["pinning"] = size / (time.perf_counter() - begin)
    found["copy, pinned"] = size / seconds_of(lambda: slots[0].copy_(state, non_blocking=True), device, rounds=5)
    found["restore, pinned"] = size / seconds_of(lambda: state.copy_(slots[0], non_blocking=True), device, rounds=5)
    found["digest"] = size / seconds_of(lambda: digest_of(memory.data(0)), device, rounds=2)
    assert digest_of(memory.data(0)) == digest_of(memory.data(1)), "copies of one state have different digests"
    left = torch.randn(8192, 8192, device=device).bfloat16() if device == "cuda" else torch.randn(256, 256)
    alone = seconds_of(lambda: torch.mm(left, left), device)
    if device == "cuda":
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            slots[0].copy_(state, non_blocking=True)
    found["product beside a copy, times as long"] = seconds_of(lambda: torch.mm(left, left), device) / alone
    return found
