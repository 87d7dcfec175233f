"""Takes steps, and takes one again that was held back because its loss or gradient was unusual."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from trainer.data.batch import MicroBatch
from trainer.reporting.stats import StatsPipe, StepStats
from trainer.reporting.suspicion import (
    REST_STEPS,
    OtherRanks,
    Recomputation,
    StepGate,
    StepLimits,
    compare,
    is_exact,
)

Decide: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Returns, for the loss and norm of a step, whether it is applied and whether it is held back."""


class Observer(Protocol):
    """What is known of the steps before, and is informed of those that are taken again."""

    @property
    def limits(self) -> StepLimits:
        """Return the limits of the next step."""

    def drop_steps(self, count: int) -> None:
        """Forget the newest `count` steps."""

    def report_recomputation(self, found: Recomputation) -> None:
        """Report a step that was taken again. May raise TrainerError."""


@dataclass(frozen=True)
class DataRanks:
    """Several data ranks that can compute each other's data. `compute`: as that of `StepTaker`, with the data of the
    data rank so many places further. `sources`: for each rank, the rank that its data then belongs to."""

    count: int
    compute: Callable[[int, int, Decide], Tensor]
    sources: Callable[[int], Sequence[int]]


class StepTaker:
    """Takes the steps of a run. Nothing is copied for it: a step that is held back changes no state, as a skipped one,
    so taking it again is all that it takes. Its micro-batches are held until its statistics are known."""

    def __init__(
        self, observer: Observer, pipe: StatsPipe, compute: Callable[[int, list[MicroBatch], Decide], Tensor],
        device: torch.device, others: DataRanks | None = None,
    ) -> None:  # fmt: skip
        """`compute` takes a step and returns its statistics on the device, in the order of `StepStats`."""
        self._observer, self._pipe, self._compute, self._others = observer, pipe, compute, others
        self._gate, self._may_hold_from = StepGate(device), 0
        self._is_exact = is_exact(device)
        self._recent: deque[tuple[int, list[MicroBatch], StepLimits]] = deque()

    def take(self, step: int, batches: list[MicroBatch]) -> list[StepStats]:
        """Take a step. Return the statistics that are known now, oldest first, each step once."""
        return self._settle(self._pipe.push(step, self._take(step, batches, may_hold=step >= self._may_hold_from)))

    def drain(self) -> list[StepStats]:
        """Return the statistics of all steps that were not returned yet; afterwards none is held back."""
        known = []
        while found := self._pipe.drain():
            known += self._settle(found)
        return known

    def _take(self, step: int, batches: list[MicroBatch], *, may_hold: bool) -> Tensor:
        limits = self._observer.limits
        self._recent.append((step, batches, limits))
        return self._compute(step, batches, lambda loss, norm: self._gate.decide(loss, norm, limits, may_hold=may_hold))

    def _settle(self, known: list[StepStats]) -> list[StepStats]:
        """Take the first step that is held back again, and those after it. Return statistics that count."""
        held = next((stats for stats in known if stats.is_held), None)
        good = known if held is None else known[: known.index(held)]
        for _ in good:
            self._recent.popleft()
        if held is None:
            return known
        self._pipe.drain()  # of steps after it, which were held back as well
        again, self._recent = self._recent, deque()
        self._observer.drop_steps(len(again))
        self._gate.release()
        (step, batches, limits), *later = again
        others = self._compute_elsewhere(held)
        taken = self._pipe.push(step, self._take(step, batches, may_hold=False))
        (stats,) = taken + self._pipe.drain()
        self._recent.popleft()
        because = limits.exceeded(held)
        assert because is not None, "the device has held it back"
        if limits.exceeded(stats) is not None:
            self._may_hold_from = step + REST_STEPS
        self._observer.report_recomputation(compare(held, stats, because, others, is_exact=self._is_exact))
        good.append(stats)
        for step, batches, _ in later:
            good += self.take(step, batches)
        return good

    def _compute_elsewhere(self, held: StepStats) -> list[OtherRanks]:
        """Compute a step that was held back with the data of each data rank on another one, without applying it. Return
        one result that is the same, or those that count, if there are several data ranks.

        If the first result is another one, it may have been corrupted itself: a second one of the same ranks counts,
        and one of others, if there are more than two data ranks.
        """
        if self._others is None:
            return []
        found = self._compute_moved(self._others, held.step, 1)
        if found.confirm(held):
            return [found]
        return [self._compute_moved(self._others, held.step, shift) for shift in (1, 2)[: self._others.count - 1]]

    def _compute_moved(self, others: DataRanks, step: int, shift: int) -> OtherRanks:
        values = others.compute(step, shift, _hold)
        (stats,) = self._pipe.push(step, values) + self._pipe.drain()
        self._observer.drop_steps(1)
        return OtherRanks(stats, others.sources(shift))


def _hold(loss: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """Decide that a step is held back, whatever its loss and norm are."""
    return torch.zeros_like(norm, dtype=torch.bool), torch.ones_like(loss, dtype=torch.bool)
