"""How long a rank computes within a step's passes, without its waits for other ranks: measured in a step now and then.

Where parameters are sharded, a fast rank waits for a slow one inside the passes, so that all passes take equally long.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from trainer.contract.parallelism import MeshSizes
from trainer.reporting.stats import StepStats

SECONDS_BETWEEN_SAMPLES = 60.0
MIN_STEPS_BETWEEN_SAMPLES = 5


def passes_contain_waits(sizes: MeshSizes) -> bool:
    """Return whether ranks wait for each other within a pass. Waits of a pipeline are a phase of their own."""
    return bool(sizes.zero) or max(sizes.tensor, sizes.context, sizes.expert) > 1


class ComputeSampler:
    """Measures with torch's profiler, in the same steps on all ranks."""

    def __init__(self, device: torch.device, sizes: MeshSizes, first_step: int) -> None:
        self._activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
        self.is_needed = passes_contain_waits(sizes) and sizes.world > 1
        """Whether passes contain waits, so that all ranks take equally long."""
        self._next, self._interval = first_step + MIN_STEPS_BETWEEN_SAMPLES, MIN_STEPS_BETWEEN_SAMPLES
        self.seconds = 0.0
        """Of the newest step; 0 where it was not measured."""

    @contextmanager
    def measure(self, step: int, *, is_profiled: bool) -> Iterator[None]:
        """Measure the passes in this context if a sample is due. `is_profiled`: the profiler is in use already."""
        self.seconds = 0.0
        if not self.is_needed or step < self._next:
            yield
            return
        self._next = step + self._interval
        if is_profiled:
            yield
            return
        with profile(activities=[self._activity], acc_events=True) as profiler:
            yield
        self.seconds = compute_seconds(profiler)

    def plan(self, known: list[StepStats]) -> None:
        """Space the samples by what passes take, of the statistics that all ranks have."""
        for longest in (max(stats.pass_seconds) for stats in known):
            if longest:  # on an accelerator, those of the first steps are not known
                self._interval = max(MIN_STEPS_BETWEEN_SAMPLES, ceil(SECONDS_BETWEEN_SAMPLES / longest))


def compute_seconds(profiler: profile) -> float:
    """Return the seconds in which kernels ran on the device, or operators of torch on the CPU's threads, without
    collectives."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in profiler.profiler.kineto_results.events():
        if _is_computation(event):
            place = event.device_index(), event.device_resource_id()
            spans.setdefault(place, []).append((event.start_ns(), event.start_ns() + event.duration_ns()))
    return sum(map(_covered, spans.values())) / 1e9


def _is_computation(event: Any) -> bool:
    if event.device_type() == DeviceType.CUDA:
        return "nccl" not in str(event.name()).lower()
    return str(event.name()).startswith("aten::")


def _covered(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of intervals."""
    total, end = 0, 0
    for low, high in sorted(spans):
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total
