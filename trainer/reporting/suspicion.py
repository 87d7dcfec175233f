"""Silent corruption of a gradient before its sum over ranks, which makes all replicas equally wrong.

A step with an unusual loss or norm is held back and computed again from the same parameters and data: first with the
data of each data rank on another one, if there are several, then as before. Another result of the same ranks means that
the first one was corrupted; the same result of all, that the data or the run is unusual; other results of other ranks,
that a device has a lasting fault. What changes neither the loss nor the norm beyond their limits is not found.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isclose, isfinite, isnan

import torch
from torch import Tensor

from trainer.reporting.stats import StepStats

REST_STEPS = 64
"""Steps in which none is computed again, after one that was still unusual: a run that diverges is slowed by a 32nd."""
SAME_RESULT = 0.01
"""Relative difference of a step that is computed twice, on GPUs whose sums depend on timing; elsewhere it is 0."""
SAME_ON_OTHERS = 0.1
"""The same for the gradients of other devices, which may sum in another order or with other kernels."""
_LISTED = 8  # ranks that a text names
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class StepLimits:
    """Limits of a step, equal on all ranks: it is skipped if its norm is above `skip`, and computed again if its loss
    or norm is not finite or above `loss` or `norm`."""

    skip: float
    loss: float
    norm: float

    def exceeded(self, stats: StepStats) -> str | None:
        """Return why a step is unusual, None if it is not."""
        for name, value, limit in (
            ("loss", stats.loss, self.loss),
            ("gradient's norm", stats.gradient_norm, self.norm),
        ):
            if not isfinite(value):
                return f"the {name} is not finite"
            if value > in_fp32(limit):
                return f"the {name} {value:.4g} is above {limit:.4g}"
        return None


def in_fp32(limit: float) -> float:
    """Return a limit as the device compares with it; the largest finite number for an infinite one."""
    return ctypes.c_float(min(limit, _LARGEST)).value


class StepGate:
    """Decides on the device, without waiting for it, whether a step is applied.

    Once a step is held back, so are those that are computed before the host knows of it, until `release`.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_held = torch.zeros((), dtype=torch.bool, device=device)

    def decide(self, loss: Tensor, norm: Tensor, limits: StepLimits, *, may_hold: bool) -> tuple[Tensor, Tensor]:
        """Return (whether the step is applied, whether it is held back), scalars on the device. `loss`, `norm`: over
        all ranks."""
        if may_hold:
            is_usual = (loss <= in_fp32(limits.loss)) & (norm <= in_fp32(limits.norm))
            self._is_held = self._is_held | ~is_usual
        is_good = norm.isfinite() & loss.isfinite() & (norm <= limits.skip)
        return is_good & ~self._is_held, self._is_held

    def release(self) -> None:
        """Let the next steps be applied."""
        self._is_held = torch.zeros_like(self._is_held)


def is_exact(device: torch.device) -> bool:
    """Return whether equal inputs give equal bits on such devices."""
    return device.type != "cuda" or bool(torch.are_deterministic_algorithms_enabled())


@dataclass(frozen=True)
class OtherRanks:
    """A step of which each rank has computed the data of another one. `sources`: for each rank, the rank that this data
    belongs to."""

    stats: StepStats
    sources: Sequence[int]

    def norms(self) -> list[tuple[int, float]]:
        """Return, for the data of each rank, the rank that had it here, and its norm."""
        found = {source: (rank, self.stats.own_norms[rank]) for rank, source in enumerate(self.sources)}
        return [found[source] for source in range(len(self.sources))]

    def confirm(self, first: StepStats) -> bool:
        """Return whether the gradient of each rank's data was the same here."""
        pairs = zip(first.own_norms, self.norms(), strict=True)
        return all(is_close(own, other, SAME_ON_OTHERS) for own, (_, other) in pairs)


def is_close(one: float, other: float, tolerance: float) -> bool:
    """Return whether two norms are the same; all that are not finite count as such."""
    if not (isfinite(one) and isfinite(other)):
        return isfinite(one) == isfinite(other)
    return isclose(one, other, rel_tol=tolerance)


@dataclass(frozen=True)
class LastingFault:
    """Ranks computed another gradient than others from the same data, and again. `ranks`: those that were wrong, empty
    if that is not clear. `because`: the norms."""

    ranks: list[int]
    because: str


def find_lasting_fault(first: StepStats, others: Sequence[OtherRanks]) -> LastingFault | None:
    """Return which ranks computed a gradient that the others did not confirm; None if all agree.

    Of three results of the same data the one that differs is wrong. Of two, with two data ranks, the one with the
    larger norm, since that made the step unusual, unless the same rank would be right elsewhere.
    """
    wrong: set[int] = set()
    right: set[int] = set()
    texts: list[str] = []
    of_others = [each.norms() for each in others]
    for rank, own in enumerate(first.own_norms):
        results = [(rank, own), *(norms[rank] for norms in of_others)]
        if all(is_close(own, norm, SAME_ON_OTHERS) for _, norm in results):
            continue
        said = ", ".join(f"rank {each} of norm {norm:.6g}" for each, norm in results)
        texts.append(f"of the data of rank {rank} in step {first.step + 1}: {said}")
        if len(results) == 2:
            results.sort(key=lambda result: result[1] if isfinite(result[1]) else inf)
            right.add(results[0][0])
            wrong.add(results[1][0])
        else:
            agreeing = {
                one: sum(is_close(norm, other, SAME_ON_OTHERS) for _, other in results) - 1 for one, norm in results
            }
            if any(agreeing.values()):
                wrong |= {one for one, count in agreeing.items() if not count}
    if not texts:
        return None
    more = f"; and of {len(texts) - _LISTED} more ranks" if len(texts) > _LISTED else ""
    because = f"ranks computed different gradients, {'; '.join(texts[:_LISTED])}{more}"
    return LastingFault([] if wrong & right else sorted(wrong), because)


@dataclass(frozen=True)
class Recomputation:
    """A step that was held back, and computed again from the same parameters and data. `ranks`: those with another
    gradient of their own data than the first time. `is_same`: nothing differs. `others`: the same step with the data of
    each rank on another one, if there were any."""

    first: StepStats
    again: StepStats
    because: str
    ranks: list[int]
    is_same: bool
    others: Sequence[OtherRanks] = ()

    @property
    def lasting(self) -> LastingFault | None:
        """Return the fault that other ranks have found, and computing again on the same ranks has not."""
        return find_lasting_fault(self.first, self.others) if self.is_same and self.others else None

    def __str__(self) -> str:
        """Return what was found, as a sentence without a full stop."""
        if self.is_same:
            where = ", by other ranks too," if self.others else ""
            return f"{self.because}; the step was computed again{where} with the same result, so nothing was corrupted"
        step, first, again = self.again.step + 1, self.first, self.again
        if not self.ranks:
            return (
                f"step {step} had loss {first.loss:.6g} and a gradient of norm {first.gradient_norm:.6g}, and when it "
                f"was computed again {again.loss:.6g} and {again.gradient_norm:.6g}; no rank can be named"
            )
        values = [
            f"rank {rank} computed a gradient of norm {first.own_norms[rank]:.6g} in step {step}, and then of norm "
            f"{again.own_norms[rank]:.6g}"
            for rank in self.ranks[:_LISTED]
        ]
        more = f" and {len(self.ranks) - _LISTED} more ranks" if len(self.ranks) > _LISTED else ""
        return f"{'; '.join(values)}{more}, from the same parameters and data"


def compare(
    first: StepStats, again: StepStats, because: str, others: Sequence[OtherRanks] = (), *, is_exact: bool
) -> Recomputation:
    """Compare two results of a step. `because`: why it was computed again. `others`: see `Recomputation`. `is_exact`:
    equal inputs give equal bits on these devices."""

    def is_same(pair: tuple[float, float]) -> bool:
        one, other = pair
        return one == other or (isnan(one) and isnan(other)) or (not is_exact and isclose(*pair, rel_tol=SAME_RESULT))

    def differing(one: Sequence[float], other: Sequence[float]) -> list[int]:
        return [place for place, pair in enumerate(zip(one, other, strict=True)) if not is_same(pair)]

    ranks = differing(first.own_norms, again.own_norms)
    totals = [(each.loss, each.gradient_norm, *each.batch_losses) for each in (first, again)]
    return Recomputation(first, again, because, ranks, not ranks and not differing(*totals), others)
