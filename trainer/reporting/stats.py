"""Copy per-step statistics from the device to the host without stalling the device."""

from collections import deque
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from trainer.contract.rollback import ACCELERATOR_LAG


@dataclass(frozen=True)
class StepStats:
    """Statistics of one step (counted from 0), reduced over all ranks and therefore equal on every rank.

    `is_applied`: whether the step has updated the parameters. `is_held`: it has not, because it, or one shortly before
    it, is to be computed again. `save_due` and `shadow_due`: above 0 if it was time for a checkpoint of this kind, and
    no rank was still making its last shadow checkpoint. `ranks_replicated`: those that could send another shadow
    checkpoint to another node, because the last one has arrived. Seven have a figure of each rank: `pass_seconds` is
    the duration of its forward and backward passes, `compute_seconds` what of it was no wait for others (0 where that
    was not measured), `memory_bytes` its peak until now, `stall_seconds` its wait for data, `checksums` that of its
    parameters before the step (0 where they were not checked), `own_norms` the norm of the gradient of its own data
    (`Weights.own_norm`; 0 where it is not known), `squares` its share of the squared norm of the gradient.
    `layer_squares`: the squared norm of the gradient of each layer, before clipping, in the order of `Layers.names`.
    `batch_losses`: the mean loss of each micro-batch, by data rank. `preference_figures`: with preference training, the
    sums over the answers of the step (`trainer.models.preference.PREFERENCE_FIGURES`).
    """

    step: int
    loss: float
    gradient_norm: float
    is_applied: bool
    is_held: bool
    ranks_stopping: float
    skipped_sequences: float
    profile_number: float
    profile_steps: float
    save_due: float
    shadow_due: float
    ranks_replicated: float
    pass_seconds: tuple[float, ...]
    compute_seconds: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    stall_seconds: tuple[float, ...]
    checksums: tuple[float, ...]
    own_norms: tuple[float, ...]
    squares: tuple[float, ...]
    layer_squares: tuple[float, ...]
    batch_losses: tuple[float, ...]
    preference_figures: tuple[float, ...] = ()


NUM_SINGLE = 11  # fields after `step` that are one number
RANK_FIGURES = 7


class StatsPipe:
    """Delays statistics by a fixed number of steps, `lag` (2 on CUDA, 0 on CPU), so that all ranks decide at the same
    step."""

    def __init__(self, device: torch.device, num_ranks: int, num_layers: int, num_preference_figures: int = 0) -> None:
        """`num_layers`: of `layer_squares`."""
        self._is_accelerator = device.type == "cuda"
        self.lag = ACCELERATOR_LAG if self._is_accelerator else 0
        self._sizes = [num_ranks] * RANK_FIGURES + [num_layers, num_preference_figures]
        self._waiting: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def push(self, step: int, values: Tensor) -> list[StepStats]:
        """Queue the statistics of a step and return those that are due.

        `values`: fp32, on the device, in the order of the fields of `StepStats` after `step`, but
        `preference_figures` before `batch_losses`, of which there are as many as are left.
        """
        event = None
        if self._is_accelerator:
            values = values.to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._waiting.append((step, values, event))
        return [self._take() for _ in range(len(self._waiting) - self.lag)]

    def drain(self) -> list[StepStats]:
        """Return the statistics of all steps that were not returned yet."""
        return [self._take() for _ in range(len(self._waiting))]

    def _take(self) -> StepStats:
        step, values, event = self._waiting.popleft()
        if event is not None:
            event.synchronize()
        loss, norm, applied, held, *flags = values[:NUM_SINGLE].tolist()
        rest = values[NUM_SINGLE:].tolist()
        ends = list(accumulate(self._sizes, initial=0))
        *parts, pairs, batches = (tuple(rest[begin:end]) for begin, end in pairwise([*ends, len(rest)]))
        in_order = [*parts, batches, pairs]
        return StepStats(step, loss, norm, bool(applied), bool(held), *flags, *in_order)
