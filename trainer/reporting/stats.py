"""Per-step numbers from device to host without stalling the device."""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

ACCELERATOR_LAG = 2  # steps: by then the copy is long done, so reading it waits for nothing


@dataclass(frozen=True)
class StepStats:
    """Sums over all ranks of one 0-based step, so the same on every rank; `pass_seconds`: how long each rank's forward
    and backward pass took."""

    step: int
    loss: float
    gradient_norm: float
    is_finite: bool
    ranks_stopping: float
    skipped_sequences: float
    profile_number: float
    profile_steps: float
    pass_seconds: tuple[float, ...]


class StatsPipe:
    """Statistics of step s come out at step s + lag on every rank alike: decisions made on them agree."""

    def __init__(self, device: torch.device) -> None:
        self._is_accelerator = device.type == "cuda"
        self._waiting: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def push(self, step: int, values: Tensor) -> list[StepStats]:
        """`values`: in the order of `StepStats`' fields after `step`; fp32, on the device."""
        event = None
        if self._is_accelerator:
            values = values.to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting.append((step, values, event))
        lag = ACCELERATOR_LAG if self._is_accelerator else 0
        return [self._take() for _ in range(len(self._waiting) - lag)]

    def drain(self) -> list[StepStats]:
        """Return the statistics of all steps that were not returned yet."""
        return [self._take() for _ in range(len(self._waiting))]

    def _take(self) -> StepStats:
        step, values, event = self._waiting.popleft()
        if event is not None:
            event.synchronize()
        loss, norm, finite, stopping, skipped, number, steps, *seconds = values.tolist()
        return StepStats(step, loss, norm, bool(finite), stopping, skipped, number, steps, tuple(seconds))
