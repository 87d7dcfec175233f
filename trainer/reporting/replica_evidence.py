"""Which of two replicas was wrong: no majority says so, but what each computed when the run takes the same steps again.

A wrong number on one replica reaches the others by the next sum of gradients, so their parameters do not show where it
began. The first figure that differs when a step is taken again does, where equal inputs give equal bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan

from trainer.errors import EvidenceRow

_FIGURES = {
    "own": "another gradient of its own data in step",
    "sum": "another gradient after its sum in step",
    "parameters": "other parameters after step",
}
"""Figures of each replica, in the order in which a step computes them."""


@dataclass(frozen=True)
class Resolution:
    """The first figure that differs from that before the restart. `wrong`: the ranks on which it differed; none if it
    did on all."""

    step: int
    figure: str
    wrong: list[int]
    replicas: tuple[int, ...]

    @property
    def completed(self) -> int:
        """Return how many steps were complete with it."""
        return self.step + (self.figure != "parameters")

    def __str__(self) -> str:
        """Return what was found, as a sentence without a full stop."""
        what = f"{_FIGURES[self.figure]} {self.completed}"
        ranks = ", ".join(map(str, self.wrong or self.replicas))
        name = f"rank {ranks}" if len(self.wrong) == 1 else f"each of ranks {ranks}"
        end = "wrong values" if self.wrong else "no rank can be named"
        return f"before the restart, {name} had {what} than now that it was taken again: {end}"


class ReplicaEvidence:
    """What this rank's replicas have computed since they last agreed. `before`: the same until the restart, empty if it
    is known which was wrong or if equal inputs may give other bits."""

    def __init__(self, replicas: tuple[int, ...], before: Sequence[EvidenceRow]) -> None:
        self.rows: list[EvidenceRow] = []
        self._replicas = replicas
        self._before = {(step, figure): {rank: value for rank, value in values} for step, figure, values in before}

    def add(self, step: int, figure: str, of_ranks: Sequence[float]) -> Resolution | None:
        """Add a figure of `step` (from 0; "parameters": before it), by rank. Return what it says about the time before
        the restart, once."""
        if len(self._replicas) == 1:
            return None
        values = {rank: of_ranks[rank] for rank in self._replicas}
        self.rows.append((step, figure, list(values.items())))
        then = self._before.pop((step, figure), {})
        if then.keys() != values.keys():
            return None
        wrong = [rank for rank, value in values.items() if not _is_same(value, then[rank])]
        if not wrong:
            return None
        self._before.clear()
        return Resolution(step, figure, wrong if len(wrong) < len(values) else [], self._replicas)

    def clear(self) -> None:
        """Forget the figures until now: the replicas agree."""
        self.rows.clear()


def _is_same(one: float, other: float) -> bool:
    return one == other or (isnan(one) and isnan(other))
