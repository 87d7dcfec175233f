"""Notice gradients with an unusually large norm: report them, and skip those beyond the limit of the spec."""

from collections import deque
from math import inf, isfinite
from statistics import fmean, median, pstdev

from pydantic import ConfigDict

from trainer.contract.base import WireModel
from trainer.contract.optimisation import GradientWatchSpec

WINDOW, MIN_STEPS = 128, 20  # steps whose norms are compared with; the fewest of them


class GradientWatchState(WireModel):
    """What a watch remembers, by the names of `GradientWatch`; that of one that has seen no step."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="constants")

    norms: list[float] = []
    bounded: list[float] = []
    was_large: bool = False
    skip_limit: float = inf


class GradientWatch:
    """Compares the norm of each step with the limits of the spec and with the steps before."""

    def __init__(self, spec: GradientWatchSpec, state: GradientWatchState | None = None) -> None:
        """Continue from `state`, if there is one."""
        self._spec, state = spec, state or GradientWatchState()
        self._norms: deque[float] = deque(state.norms, maxlen=WINDOW)
        self._bounded: deque[float] = deque(state.bounded, maxlen=WINDOW)
        """The same, at most the limit that each step had, so that an outlier raises the limit just a little."""
        self._was_large = state.was_large
        self.skip_limit = state.skip_limit
        """Norm above which the next step is skipped."""

    @property
    def state(self) -> GradientWatchState:
        """Return what it remembers."""
        return GradientWatchState(
            norms=list(self._norms), bounded=list(self._bounded), was_large=self._was_large, skip_limit=self.skip_limit
        )

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
        self._bounded.append(min(norm, self.skip_limit))
        if self._spec.skip_sigma is not None and len(self._bounded) >= MIN_STEPS:
            self.skip_limit = fmean(self._bounded) + self._spec.skip_sigma * pstdev(self._bounded)
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
