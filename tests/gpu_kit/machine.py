"""What the trainer reads of a machine and its GPU, against other sources, and what its checks of the hardware cost."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from tests.gpu_kit.checks import NotHereError, has_program
from tests.gpu_kit.jobs import Device
from tests.gpu_kit.kernels import normal, seconds_of
from trainer.contract.models import ModelShape
from trainer.contract.system import SYSTEM_SERIES
from trainer.models.decoder import Decoder, initialise
from trainer.parallel.weights import Weights
from trainer.reporting.gpu_health import GpuSampler, open_nvml
from trainer.reporting.replica_check import ReplicaCheck
from trainer.reporting.suspicion import SAME_RESULT

Figures = dict[str, Any]
SMI = {
    "system/gpu_utilisation": ("utilization.gpu", 0.01, 0.1),
    "system/gpu_temperature": ("temperature.gpu", 1.0, 5.0),
    "system/gpu_power": ("power.draw", 1.0, 150.0),
    "system/gpu_clock": ("clocks.sm", 1.0, 300.0),
    "system/gpu_ecc_corrected": ("ecc.errors.corrected.volatile.total", 1.0, 0.0),
    "system/gpu_ecc_uncorrected": ("ecc.errors.uncorrected.volatile.total", 1.0, 0.0),
}
"""By the name of a series: what nvidia-smi calls it, its unit in that of the series, and how far the two may be apart,
since they are read at different times."""
WITHOUT_LINKS = "system/nvlink_errors"  # machines with one GPU have no links
FLIPS = 500


def preflight(results: Path, device: Device) -> Figures:
    """Run `python -m trainer preflight`. A healthy GPU has no findings; what it measures has its expected figures."""
    command = [sys.executable, "-m", "trainer", "preflight", "--json", "--folder", str(results)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"status {ended.returncode}: {ended.stdout[-1000:]}{ended.stderr[-1000:]}"
    report = json.loads(ended.stdout)
    assert device == "cpu" or not report["findings"], report["findings"]
    return {
        "seconds": report["seconds"],
        "measures": {each["name"]: [each["median"], each["expected"]] for each in report["measures"]},
    }


def gpu_samples(device: Device) -> Figures:
    """Sample the GPU while it computes, and compare with what nvidia-smi says. Raises AssertionError if they differ
    or a series is missing."""
    nvml = open_nvml() if device == "cuda" else None
    if nvml is None or not has_program("nvidia-smi"):
        raise NotHereError("nvidia-ml-py or nvidia-smi is not installed, or there is no GPU")
    sampler = GpuSampler(nvml)
    left = torch.randn(16384, 16384, device=device).bfloat16()
    names = [field for field, _, _ in SMI.values()]
    for _ in range(500):  # 6 seconds of products, which are in work while both sources are read
        torch.mm(left, left)
    time.sleep(1.5)  # utilisation and power are means of up to the last second
    readings = sampler.sample()
    query = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    answers = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    is_busy = not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert is_busy, "the products ended before the GPU was read"
    values = dict(readings[0].values)
    found: Figures = {"gpus": len(readings), "slowdowns": sorted(readings[0].slowdowns), "values": values}
    missing = [name for name, series in SYSTEM_SERIES.items() if series.of == "gpu" and name not in values]
    found["missing"] = missing
    assert missing in ([], [WITHOUT_LINKS]), f"not sampled: {missing}"
    for (name, (_, unit, tolerance)), text in zip(SMI.items(), answers, strict=True):
        found[f"nvidia-smi, {name}"] = text
        if text.replace(".", "").isdigit():
            expected = float(text) * unit
            assert abs(values[name] - expected) <= tolerance, f"{name} is {values[name]}, by nvidia-smi {expected}"
    assert values["system/gpu_utilisation"] > 0.5, values
    assert 0 < values["system/gpu_memory_used"] < 1, values
    return found


def checksum(device: Device) -> Figures:
    """Compare the checksum of parameters with the CPU's, and find each of FLIPS flipped bits. Return the bytes per
    second and the launches' seconds for a model of a billion parameters (on the CPU, of a million)."""
    values = normal(1_000_003, seed=1)
    placed = values.to(device)
    check, expected = _check_of([placed]), _check_of([values]).checksum()
    found = check.checksum()
    assert float(found) == float(expected), f"checksum {float(found)}, on the CPU {float(expected)}"
    bits = placed.view(torch.int32)
    generator = torch.Generator().manual_seed(2)
    for place in torch.randint(0, bits.numel(), (FLIPS,), generator=generator).tolist():
        bit = 1 << int(torch.randint(0, 31, (), generator=generator))
        bits[place] ^= bit
        assert float(check.checksum()) != float(expected), f"bit {bit} of number {place} was not found"
        bits[place] ^= bit
    assert float(check.checksum()) == float(expected)
    count = 10**9 if device == "cuda" else 10**6
    parts = list(torch.empty(count, device=device).normal_().split(count // 100))
    large = _check_of(parts)
    seconds = seconds_of(large.checksum, device, rounds=5)
    return {"parameters": count, "tensors": len(parts), "seconds": seconds, "bytes per second": 4 * count / seconds}


def _check_of(parameters: list[torch.Tensor]) -> ReplicaCheck:
    """Return a check of parameters that two ranks have."""
    named = {f"parameter {number}": each for number, each in enumerate(parameters)}
    layouts = dict.fromkeys(named, SimpleNamespace(replica_ranks=(0, 1)))
    weights = SimpleNamespace(mesh=SimpleNamespace(rank=0), trainable=named, layouts=layouts)
    return ReplicaCheck(cast("Weights", weights))


def repeated_step(device: Device) -> Figures:
    """Compute the gradient of the same batch several times: how far its norms are apart, relative, where kernels add
    in an order of their own. A step that is computed twice may differ by SAME_RESULT and counts as the same."""
    sizes = {"hidden_size": 1024, "num_layers": 8, "num_heads": 16, "num_kv_heads": 8, "intermediate_size": 2816}
    small = {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 128}
    shape = ModelShape.model_validate(sizes if device == "cuda" else small)
    vocabulary, length = (32_768, 2048) if device == "cuda" else (512, 64)
    model = Decoder(shape, vocabulary, length)
    model.zero_buffers()
    initialise(model, seed=3)
    model.to(device)
    tokens = torch.randint(0, vocabulary, (4, length), generator=torch.Generator().manual_seed(4)).to(device)
    norms, losses = [], []
    for _ in range(6):
        model.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call] # torch has no annotation for it
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        losses.append(float(loss))
    apart = max(norms) / min(norms) - 1
    assert apart < SAME_RESULT, f"norms of one gradient are {apart:.1e} apart: {norms}"
    return {"norms apart": apart, "losses apart": max(losses) / min(losses) - 1, "allowed": SAME_RESULT}
