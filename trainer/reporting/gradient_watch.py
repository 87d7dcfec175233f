"""Notice gradients with an unusually large norm: report them, and skip those beyond the limit of the spec."""

from collections import deque
from math import inf, isfinite
from statistics import fmean, median, pstdev

from pydantic import ConfigDict

from trainer.contract.base import WireModel
from trainer.contract.optimisation import GradientWatchSpec

WINDOW, MIN_STEPS = 128, 20  # steps whose norms are compared with; the fewest of them


class OutlierState(WireModel):
    """What a limit remembers, by the names of `OutlierLimit`; that of one that has seen no value."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    bounded: list[float] = []
    limit: float = inf


class OutlierLimit:
    """Limit of a value: the mean of the last WINDOW values plus `sigma` of their standard deviations; infinite without
    `sigma`, and before MIN_STEPS values."""

    def __init__(self, sigma: float | None, state: OutlierState) -> None:
        """Continue from `state`."""
        self._sigma = sigma
        self._bounded: deque[float] = deque(state.bounded, maxlen=WINDOW)
        """The values, at most the limit that each had, so that an outlier raises the limit just a little."""
        self.limit = state.limit

    @property
    def state(self) -> OutlierState:
        """Return what it remembers."""
        return OutlierState(bounded=list(self._bounded), limit=self.limit)

    def add(self, value: float) -> None:
        """Count a finite value."""
        self._bounded.append(min(value, self.limit))
        if self._sigma is not None and len(self._bounded) >= MIN_STEPS:
            self.limit = fmean(self._bounded) + self._sigma * pstdev(self._bounded)


class GradientWatchState(WireModel):
    """What a watch remembers, by the names of `GradientWatch`; that of one that has seen no step."""

    norms: list[float] = []
    outliers: OutlierState = OutlierState()
    was_large: bool = False


class GradientWatch:
    """Compares the norm of each step with the limits of the spec and with the steps before."""

    def __init__(self, spec: GradientWatchSpec, state: GradientWatchState | None = None) -> None:
        """Continue from `state`, if there is one."""
        self._spec, state = spec, state or GradientWatchState()
        self._norms: deque[float] = deque(state.norms, maxlen=WINDOW)
        self._outliers = OutlierLimit(spec.skip_sigma, state.outliers)
        self._was_large = state.was_large

    @property
    def skip_limit(self) -> float:
        """Return the norm above which the next step is skipped."""
        return self._outliers.limit

    @property
    def usual_limit(self) -> float:
        """Return the norm above which the next step is unusual: reported or skipped."""
        absolute, relative = self._spec.absolute, self._spec.relative
        limits = [self.skip_limit, inf if absolute is None else absolute]
        if relative is not None and len(self._norms) >= MIN_STEPS:
            limits.append(relative * median(self._norms))
        return min(limits)

    @property
    def state(self) -> GradientWatchState:
        """Return what it remembers."""
        return GradientWatchState(norms=list(self._norms), outliers=self._outliers.state, was_large=self._was_large)

    def check(self, norm: float) -> str | None:
        """Return why the norm of the next step is unusual; None if it is not, or if that of the step before was too.

        Norms that are not finite belong to skipped steps and are left out.
        """
        if not isfinite(norm):
            return None
        reason = self._reason(norm)
        is_new = reason is not None and not self._was_large
        self._was_large = reason is not None
        self._norms.append(norm)
        self._outliers.add(norm)
        return reason if is_new else None

    def _reason(self, norm: float) -> str | None:
        absolute, relative = self._spec.absolute, self._spec.relative
        if absolute is not None and norm > absolute:
            return f"above optimizer.gradient_watch.absolute {absolute:g}"
        if relative is None or len(self._norms) < MIN_STEPS:
            return None
        usual = median(self._norms)
        if norm > relative * usual:
            return f"{norm / usual:.1f} times the median of the last {len(self._norms)} steps"
        return None
