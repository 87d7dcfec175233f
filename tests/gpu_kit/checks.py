"""The machine, and every path of the trainer on its GPU against the numbers of its CPU."""

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu_kit.jobs import (
    BASE,
    CASES,
    REFERENCES,
    SHAPE,
    TOLERANCES,
    Device,
    Job,
    differences,
    fresh,
    training_of,
    write_documents,
)
from trainer.contract.models import ModelShape
from trainer.models.cache import use_kv_cache
from trainer.models.decoder import Decoder, initialise
from trainer.parallel.collectives import all_gather_dim, all_to_all_rows, reduce_scatter_dim
from trainer.reporting.throughput import peak_of

Figures = dict[str, Any]
NO_TF32 = {"NVIDIA_TF32_OVERRIDE": "0"}
"""Products of fp32 without TF32, so that its tolerance is that of fp32."""


class NotHereError(Exception):
    """What this machine has no means for; the text says what."""


def environment(device: Device) -> Figures:
    """Return what this machine is, and what of torch's kernels it has."""
    names = ("torch", "numpy", "safetensors", "tokenizers", "pyarrow", "pydantic", "tink", "torchao", "triton")
    found: Figures = {
        "python": platform.python_version(), "system": platform.platform(), "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": {name: version_of(name) for name in names},
    }  # fmt: skip
    if device == "cpu":
        return found
    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True, check=False) if has_program(query[0]) else None
    cuda = torch.device("cuda", 0)
    found |= {
        "gpu": properties.name, "gpu_memory_bytes": properties.total_memory, "gpus": torch.cuda.device_count(),
        "capability": f"{properties.major}.{properties.minor}", "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "driver, power limit, clock": smi.stdout.strip() if smi is not None else "nvidia-smi is not installed",
        "flash attention packages": [
            name for name in ("flash_attn", "flash_attn_interface", "flash_attn_4")
            if importlib.util.find_spec(name) is not None
        ],
        "peak bf16": peak_of(cuda, "bf16"), "peak fp8": peak_of(cuda, "fp8"),
    }  # fmt: skip
    assert found["peak bf16"] is not None, (
        f"{properties.name} is not in trainer.reporting.throughput.PEAKS; its runs would report no MFU"
    )
    return found


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def has_program(name: str) -> bool:
    """Return whether a program is on the search path."""
    return any((Path(folder) / name).exists() for folder in os.environ.get("PATH", "").split(os.pathsep))


def collectives(device: Device) -> Figures:
    """Run the trainer's collectives in a group of one rank, over NCCL on a GPU: forward and backward change nothing."""
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    collectives: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "all_gather": lambda x: all_gather_dim(x, 0, group),
        "reduce_scatter": lambda x: reduce_scatter_dim(x, 0, group),
        "all_to_all": lambda x: all_to_all_rows(x, [4], [4], group),
    }
    try:
        for dtype in (torch.float32, torch.bfloat16):
            given = torch.arange(24, dtype=dtype, device=device).view(4, 6)
            reduced = given.clone()
            dist.all_reduce(reduced, group=group)
            assert torch.equal(reduced, given), f"all_reduce over {backend} changed the numbers in {dtype}"
            for name, collective in collectives.items():
                leaf = given.clone().requires_grad_()
                result = collective(leaf)
                (gradient,) = torch.autograd.grad(result, leaf, given)
                same = torch.equal(result, given) and torch.equal(gradient, given)
                assert same, f"{name} over {backend} changed the numbers in {dtype}"
        return {"backend": backend, "collectives": ["all_reduce", *collectives]}
    finally:
        dist.destroy_process_group()


def generation(device: Device) -> Figures:
    """Compare the likeliest tokens by the key-value cache on the device with whole passes on the CPU, in fp32."""
    shape, vocabulary, new = ModelShape.model_validate(SHAPE), 512, 24
    model = Decoder(shape, vocabulary, 64)
    model.zero_buffers()
    initialise(model, seed=3)
    prompt = [5, 17, 60, 1, 99, 3]
    expected = list(prompt)
    with torch.no_grad():
        for _ in range(new):
            expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    model.to(device)
    found = list(prompt)
    with torch.inference_mode(), use_kv_cache([model], len(prompt) + new) as cache:
        cache.prefill([len(prompt)], torch.device(device))
        given = torch.tensor([prompt], device=device)
        for number in range(new):
            if number:
                cache.step()
            found.append(int(model(given, positions_BS=cache.positions_BN)[0, 0].argmax()))
            given = torch.tensor([[found[-1]]], device=device)
    assert found == expected, f"tokens {found} instead of {expected}"
    return {"tokens": new}


def reference(name: str, results: Path, device: Device) -> Figures:
    """Run a reference on the CPU, which its cases are compared with."""
    return trained(name, results / f"reference {name}", results, "cpu", {})


def case(name: str, results: Path, device: Device) -> Figures:
    """Run a case on the device. Return the largest differences from its reference. Raises AssertionError."""
    chosen = CASES[name]
    folder = results / f"case {name}"
    found = trained(chosen.reference, folder, results, device, chosen.changes)
    precision = chosen.tolerance or training_of(REFERENCES[chosen.reference], chosen.changes)["precision"]
    run, expected = Job.finished(folder), Job.finished(results / f"reference {chosen.reference}")
    if chosen.changes.get("evaluation", {}).get("prompts"):
        assert all(event["text"] for event in run.events("evaluation.sample")), "a sample has no text"
        assert run.events("evaluation.sample"), "no sample was reported"
    return {**found, "differences": differences(run, expected, TOLERANCES[precision])}


def trained(name: str, folder: Path, results: Path, device: Device, changes: dict[str, Any]) -> Figures:
    """Train a reference with the changes. Return its last loss. Raises NotHereError without what it needs."""
    chosen = REFERENCES[name]
    training = training_of(chosen, changes)
    if training["precision"] == "fp8" and importlib.util.find_spec("torchao") is None:
        raise NotHereError("torchao is not installed")
    data = results / "documents.jsonl"
    write_documents(data)
    base = None if chosen.base is None else results / f"reference {chosen.base}" / "model"
    job = Job(fresh(folder), training, device, data=data, base=base, environment=NO_TF32)
    run = job.wait()
    losses = run.series("train/loss")
    assert losses[max(losses)] < losses[min(losses)], f"the loss does not fall: {losses}"
    return {"loss": losses[max(losses)]}


def resume(results: Path, device: Device) -> Figures:
    """Kill a run after a checkpoint and start it again: its losses are, bit by bit, those of a run without a kill."""
    data, steps, every = results / "documents.jsonl", 60, 10
    write_documents(data)
    training = {
        **training_of(REFERENCES["dense bf16"]), "deterministic": True, "steps": steps,
        "evaluation": {**BASE["evaluation"], "every_steps": steps},
    }  # fmt: skip
    whole = Job(fresh(results / "resume whole"), training, device, data=data, every_steps=every).wait()
    folder = fresh(results / "resume killed")
    Job(folder, training, device, data=data, every_steps=every).kill_when(
        lambda run: any((path / "manifest.json").exists() for path in run.checkpoints)
    )
    saved = [path.name for path in Job.finished(folder).checkpoints]
    killed = Job(folder, training, device, data=data, every_steps=every).wait()
    mine, theirs = killed.series("train/loss"), whole.series("train/loss")
    assert mine.keys() == theirs.keys(), f"steps {len(mine)} instead of {len(theirs)}"
    apart = [step for step in theirs if mine[step] != theirs[step]]
    assert not apart, f"losses differ from step {apart[0]} on: {mine[apart[0]]!r} instead of {theirs[apart[0]]!r}"
    return {"steps": len(mine), "checkpoints when killed": saved}
