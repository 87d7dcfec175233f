"""What an alert rule can measure. Pure data."""

from dataclasses import dataclass
from enum import StrEnum


class Measure(StrEnum):
    """The measures of alert rules."""

    SERIES_BELOW = "series_below"
    SERIES_ABOVE = "series_above"
    SERIES_DROP = "series_drop"
    SERIES_SPIKE = "series_spike"
    NO_PROGRESS = "no_progress"
    QUEUE_WAIT = "queue_wait"
    BUDGET_USED = "budget_used"
    STORAGE_USED = "storage_used"


@dataclass(frozen=True)
class MeasureFacts:
    """Facts about a measure.

    `fires_above`: the alert fires at or above the threshold; otherwise below it. `of_jobs`: each matching job is
    measured by itself; otherwise what the team is limited by. `message`: formatted with the value and the series.
    """

    description: str
    unit: str
    fires_above: bool
    of_jobs: bool
    message: str
    has_series: bool = False
    has_window: bool = False


MEASURES: dict[Measure, MeasureFacts] = {
    Measure.SERIES_BELOW: MeasureFacts(
        "Newest value of a series of a running job, below the threshold.",
        "as the series", False, True, "{series} is {value:.6g}", has_series=True,
    ),
    Measure.SERIES_ABOVE: MeasureFacts(
        "Newest value of a series of a running job, at or above the threshold.",
        "as the series", True, True, "{series} is {value:.6g}", has_series=True,
    ),
    Measure.SERIES_DROP: MeasureFacts(
        "How far the newest value of a series is below the median of its last `window` points.",
        "%", True, True, "{series} is {value:.3g} % below its median", has_series=True, has_window=True,
    ),
    Measure.SERIES_SPIKE: MeasureFacts(
        "How far the highest of the last `window` points of a series is above their median.",
        "%", True, True, "{series} was {value:.3g} % above its median", has_series=True, has_window=True,
    ),
    Measure.NO_PROGRESS: MeasureFacts(
        "Time since the platform received a new step or phase of a running job, or since it started.",
        "minutes", True, True, "no progress for {value:.3g} minutes",
    ),
    Measure.QUEUE_WAIT: MeasureFacts(
        "Time for which a job has been in the queue.",
        "minutes", True, True, "waits in the queue for {value:.3g} minutes",
    ),
    Measure.BUDGET_USED: MeasureFacts(
        "Spent share of a budget that the team is charged to, in its current period.",
        "%", True, False, "{value:.3g} % of the budget is spent",
    ),
    Measure.STORAGE_USED: MeasureFacts(
        "Stored data as a share of `max_storage_bytes` of the team, or of a group above it.",
        "%", True, False, "{value:.3g} % of the storage limit is used",
    ),
}  # fmt: skip
DEFAULT_WINDOW = 50
MIN_WINDOW, MAX_WINDOW = 5, 500
