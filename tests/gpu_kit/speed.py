"""Throughput of whole runs of the trainer, beside a bare compiled loop of the same shape, and the cost of saves."""

import json
import os
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.bench import trainer_rivals as rivals
from tests.gpu_kit.checks import NotHereError, version_of
from tests.gpu_kit.jobs import Device, Job, fresh
from tests.gpu_kit.schedule import read_result
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.micro_batch import MEMORY_SHARE, estimate_device_bytes
from trainer.contract.models import MODELS
from trainer.contract.training import TrainingSpec
from trainer.reporting.throughput import model_flops_utilisation, peak_of

Figures = dict[str, Any]
VOCABULARY = 32_768
WARM_UP_STEPS, MEASURED_STEPS = 3, 7
SMALL = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 256}
"""What a rehearsal on the CPU trains instead."""


@dataclass(frozen=True)
class Speed:
    """A preset to train in a precision, with as many of its layers as fit into the GPU's memory."""

    preset: str
    precision: str
    tokens_per_step: int = 65_536
    has_bare_loop: bool = False


SPEEDS = {
    "1B bf16": Speed("llama-1b", "bf16", has_bare_loop=True),
    "8B bf16": Speed("llama-8b", "bf16", 32_768, has_bare_loop=True),
    "1B fp8": Speed("llama-1b", "fp8"),
    "8B fp8": Speed("llama-8b", "fp8", 32_768),
}


def training(speed: Speed, device: Device, layers: int | None = None) -> dict[str, Any]:
    """Return the `training` section. `layers`: of the model; None: those of the preset."""
    is_gpu = device == "cuda"
    shape = MODELS[speed.preset].model_dump(exclude_none=True) if is_gpu else SMALL
    return {
        "model": {"shape": {**shape, "num_layers": layers or shape["num_layers"]}},
        "data": {"source": "builtin:python-stdlib"},
        "tokenizer": {"vocab_size": VOCABULARY if is_gpu else 1024},
        "steps": 10_000,
        "tokens_per_step": speed.tokens_per_step if is_gpu else 2048,
        "sequence_length": 4096 if is_gpu else 128,
        "precision": speed.precision,
        "compile": True,
        "evaluation": {"every_steps": 10_000, "sequences": 1},
    }


def layers_that_fit(speed: Speed, device: Device) -> int:
    """Return the most layers that fit into the GPU's memory, by the estimate for micro-batches of one sequence."""
    most = int(training(speed, device)["model"]["shape"]["num_layers"])
    if device == "cpu":
        return most
    memory = torch.cuda.get_device_properties(0).total_memory
    for layers in range(most, 0, -1):
        if estimated_bytes(training(speed, device, layers), 1) <= MEMORY_SHARE * memory:
            return layers
    raise NotHereError(f"one layer of {speed.preset} does not fit into {memory} bytes")


def measure(name: str, results: Path, device: Device) -> Figures:
    """Train until enough steps are measured, then kill the run: what it would save is not part of this."""
    speed = SPEEDS[name]
    if speed.precision == "fp8" and version_of("torchao") is None:
        raise NotHereError("torchao is not installed")
    layers = layers_that_fit(speed, device)
    fields = training(speed, device, layers)
    folder = fresh(results / f"speed {name}")
    share_datasets(folder, results)
    last = WARM_UP_STEPS + MEASURED_STEPS
    job = Job(folder, fields, device, profile=last + 1)
    job.kill_when(lambda run: any((run.output / "profile").glob("*.json")) and last in run.series("time/step_seconds"))
    run = job.run
    (trace,) = (run.output / "profile").glob("*.json")
    (settings,) = run.events("settings.resolved")

    def median(series: str) -> float | None:
        values = [value for step, value in run.series(series).items() if WARM_UP_STEPS < step <= last]
        return statistics.median(values) if values else None

    names = ("step", "data_stall", "forward", "backward", "communication", "optimizer", "other")
    return {
        "layers": layers,
        "layers of the preset": int(training(speed, device)["model"]["shape"]["num_layers"]),
        "attention": settings["attention"],
        "micro_batch_sequences": settings["micro_batch_sequences"],
        "tokens_per_second": median("throughput/tokens_per_second"),
        "mfu_causal": median("throughput/mfu_causal"),
        "mfu_palm": median("throughput/mfu_palm"),
        "memory_peak_bytes": median("memory/peak_bytes"),
        "memory_estimate_bytes": estimated_bytes(fields, settings["micro_batch_sequences"]),
        "seconds": {each: median(f"time/{each}_seconds") for each in names},
        "waits for copies": list(run.series("time/shadow_seconds").values()),
        "start_seconds": {event["phase"]: event["seconds"] for event in run.events("phase.finished")},
        "kernels": longest_kernels(trace),
        "loss": median("train/loss"),
    }


def estimated_bytes(fields: dict[str, Any], micro_batch: int) -> int:
    """Return what the estimate expects of a GPU with micro-batches of so many sequences."""
    spec = TrainingSpec.model_validate(fields)
    sizes = plan_mesh(spec, spec.tokenizer.vocab_size, 1)
    assert not isinstance(sizes, list), sizes
    return estimate_device_bytes(spec, sizes, spec.tokenizer.vocab_size, micro_batch)


def longest_kernels(trace: Path, count: int = 25) -> dict[str, float]:
    """Return the kernels that took longest in a trace, and their seconds; and of the copies between host and GPU."""
    seconds: Counter[str] = Counter()
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            seconds[event["name"][:160]] += event["dur"] / 1e6
    return dict(seconds.most_common(count))


def share_datasets(folder: Path, results: Path) -> None:
    """Let all runs use the data that the first of them prepares."""
    shared = results / "datasets"
    shared.mkdir(exist_ok=True)
    (folder / "work").mkdir(parents=True)
    (folder / "work" / "datasets").symlink_to(shared)


def bare(name: str, results: Path, device: Device) -> Figures:
    """Measure what one writes by hand, of the same shape and micro-batch: compiled blocks, batches in memory,
    autocast, fused AdamW and `clip_grad_norm_`, without data, reports or checks. Halves the micro-batch when memory
    runs out."""
    ours = read_result(results, f"speed {name}")
    assert ours is not None
    figures, size = ours["figures"], int(ours["figures"]["micro_batch_sequences"])
    while True:
        fields = {**training(SPEEDS[name], device, figures["layers"]), "steps": WARM_UP_STEPS + MEASURED_STEPS,
                  "parallelism": {"micro_batch_sequences": size}, "schedule": {"warmup_steps": 0}}  # fmt: skip
        spec = TrainingSpec.model_validate(fields)
        try:
            return {**bare_loop(spec, device), "micro_batch_sequences": size}
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2
        torch.cuda.empty_cache()


def bare_loop(spec: TrainingSpec, device: Device) -> Figures:
    """Return the median seconds of a step, tokens per second and MFU. Raises OutOfMemoryError."""
    torch.set_float32_matmul_precision("high")
    with torch.device(device):
        model = rivals.empty_model(spec)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
    for block in model.blocks.values():  # as torchtitan does; the whole takes minutes
        block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    for step in rivals.batches(spec, 1):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for batch in step:
            (rivals.loss_of(model, batch.to(device), spec) / len(step)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    taken = statistics.median(seconds[WARM_UP_STEPS:])
    speed = spec.tokens_per_step / taken
    peak = peak_of(torch.device(device), spec.precision)
    utilisation = model_flops_utilisation(spec, spec.tokenizer.vocab_size, speed, 1, peak)
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {
        "tokens_per_second": speed, "mfu_causal": utilisation.get("throughput/mfu_causal"),
        "memory_peak_bytes": memory, "seconds": {"step": taken},
    }  # fmt: skip


def saves(results: Path, device: Device) -> Figures:
    """Save a model of 0.3 billion parameters (on the CPU a small one) while it trains: how long the loop waited, how
    much slower the steps are meanwhile, and what the peak of the memory became."""
    every, rounds = 12, 3
    shape = {"hidden_size": 1024, "num_layers": 20, "num_heads": 16, "num_kv_heads": 8, "intermediate_size": 2816}
    fields = training(Speed("llama-1b", "bf16"), device)
    fields |= {"compile": False, "tokenizer": {"vocab_size": 1024}}
    fields |= {"model": {"shape": shape}, "sequence_length": 1024} if device == "cuda" else {}
    folder = fresh(results / "saves")
    share_datasets(folder, results)
    job = Job(folder, fields, device, every_steps=every)
    try:
        job.kill_when(
            lambda run: (run.output / "progress.jsonl").exists() and len(run.events("checkpoint.saved")) >= rounds
        )
    finally:
        for path in (folder / "store").rglob("*.part"):
            path.unlink()
    run = job.run
    saved = run.events("checkpoint.saved")
    steps, waits = run.series("time/step_seconds"), run.series("time/checkpoint_seconds")
    memory = run.series("memory/peak_bytes")
    before = [seconds for step, seconds in steps.items() if WARM_UP_STEPS < step <= every]
    after = [seconds for step, seconds in steps.items() if any(0 < step - begun <= 3 for begun in waits)]
    return {
        "bytes": saved[-1]["bytes"], "seconds": statistics.median(event["seconds"] for event in saved),
        "waits": list(waits.values()), "step before": statistics.median(before),
        "steps after a save": statistics.median(after),
        "memory before": memory[every], "memory after": memory[max(memory)], "processors": os.cpu_count(),
    }  # fmt: skip
