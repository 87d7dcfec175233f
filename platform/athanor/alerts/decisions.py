"""The next state of an alert, from its state and a new value. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class AlertState(StrEnum):
    """State of an alert. `pending`: beyond the threshold, but not for long enough to fire."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


OPEN = frozenset({AlertState.PENDING, AlertState.FIRING})


@dataclass(frozen=True)
class Condition:
    """When an alert fires and clears.

    `fires_above`: it fires at or above `threshold`, and clears below `clear`; otherwise it fires below `threshold`, and
    clears at or above `clear`. Between the two an alert stays as it is, so that a value at the limit does not flap.
    """

    fires_above: bool
    threshold: float
    clear: float
    hold: timedelta

    def is_breached(self, value: float) -> bool:
        """Return whether the value is beyond the threshold."""
        return value >= self.threshold if self.fires_above else value < self.threshold

    def is_clear(self, value: float) -> bool:
        """Return whether the value ends an alert that fires."""
        return value < self.clear if self.fires_above else value >= self.clear


def next_state(
    condition: Condition, state: AlertState | None, since: datetime, value: float | None, now: datetime
) -> AlertState | None:
    """Return the state after a measurement. `state` None: there is no open alert; `since`: when it became pending.

    Without a value nothing changes. None is returned for no alert, or for one that was pending and is not any more.
    """
    if value is None:
        return state
    if state is AlertState.FIRING:
        return AlertState.RESOLVED if condition.is_clear(value) else AlertState.FIRING
    if not condition.is_breached(value):
        return None
    began = now if state is None else since
    return AlertState.FIRING if now - began >= condition.hold else AlertState.PENDING
