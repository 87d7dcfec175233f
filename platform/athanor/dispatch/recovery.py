"""What follows from the end of an attempt. Pure: reason, policy and history in, outcome out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile

from athanor.backends.base import Cause, Obstacle
from athanor.jobs.reasons import MEANINGS, REASON_OF_END, Reason, Retry
from athanor.specs.v1 import RetryPolicy
from trainer.contract.run import EXIT_STATUS, AttemptEnd, EndClass

MAX_SIGNAL = 64
SIGTERM = 15
FIRST_BACKOFF = timedelta(seconds=2)
MAX_BACKOFF = timedelta(minutes=10)
FIRST_PAUSE = timedelta(minutes=1)
MAX_PAUSE = timedelta(minutes=30)


@dataclass(frozen=True)
class PastEnd:
    """The end of an earlier attempt."""

    reason: Reason
    at: datetime


@dataclass(frozen=True)
class Outcome:
    """`retry_at` is None when the job ends."""

    retry_at: datetime | None
    detail: str = ""


REASON_OF_CAUSE: dict[Cause, Reason] = {
    Cause.PREEMPTED: Reason.PREEMPTED,
    Cause.SPOT_RECLAIMED: Reason.SPOT_RECLAIMED,
    Cause.NODE_LOST: Reason.NODE_LOST,
    Cause.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    Cause.TIME_LIMIT: Reason.DEADLINE,
    Cause.CANCELLED: Reason.STOPPED_BY_ADMIN,
    Cause.DELETED: Reason.INTERRUPTED,
    Cause.LAUNCH_FAILED: Reason.LAUNCH_FAILED,
}
REASON_OF_OBSTACLE: dict[Obstacle, Reason] = {
    Obstacle.CANNOT_START: Reason.CANNOT_START,
    Obstacle.NO_ROOM: Reason.NO_ROOM,
}
# What an agent reports when something was done to it: the backend, which did it or saw it, knows better.
CONSEQUENCES = frozenset(
    {EndClass.STOPPED, EndClass.COLLECTIVE_TIMEOUT, EndClass.NETWORK_ERROR, EndClass.PROCESS_KILLED}
)


def reason_of_end(
    report: AttemptEnd | None,
    *,
    exit_status: int | None,
    native_state: str,
    native_reason: str,
    cause: Cause | None = None,
    explanation: str = "",
) -> tuple[Reason, str]:
    """Why an attempt ended, from the best witness: the agent's report, what its backend did to it, its exit status,
    the backend's words."""
    message = explanation or native_reason
    if report is not None and (cause is None or report.end_class not in CONSEQUENCES or report.stopped_for):
        return REASON_OF_END[report.end_class], report.message
    if cause is not None:
        return REASON_OF_CAUSE[cause], message
    by_status = {status: end_class for end_class, status in EXIT_STATUS.items()}
    if exit_status is not None and exit_status in by_status:
        end_class = by_status[exit_status]
        if end_class is EndClass.COMPLETED:
            return Reason.UNKNOWN_LOSS, "It exited with 0 but left no report of its end."
        if end_class is EndClass.USER_ERROR:  # with which Python ends any program that fails; an agent reports its own
            return Reason.TRAINER_ERROR, f"Exit status {exit_status}, without a report. {message}".strip()
        return REASON_OF_END[end_class], f"Exit status {exit_status}."
    signal = None if exit_status is None else -exit_status if exit_status < 0 else exit_status - 128  # as shells say it
    if signal == SIGTERM:
        return Reason.INTERRUPTED, f"The agent was asked to end by signal {signal}, and left no report."
    if signal is not None and 0 < signal <= MAX_SIGNAL:
        return Reason.PROCESS_KILLED, f"The agent was killed by signal {signal}."
    if exit_status is not None:
        return Reason.LAUNCH_FAILED, f"Exit status {exit_status}, which is none of the agent's. {message}".strip()
    if native_state == "vanished":
        return Reason.PROCESS_KILLED, native_reason
    return Reason.UNKNOWN_LOSS, message


def pause_without_room(history: Sequence[PastEnd]) -> timedelta:
    """Return how long a job waits after its cluster had no room for it: longer after each such attempt, so that others
    can use its slots."""
    times = len(list(takewhile(lambda past: past.reason is Reason.NO_ROOM, reversed(history))))
    pause: timedelta = FIRST_PAUSE * 2 ** min(times, 10)
    return min(pause, MAX_PAUSE)


def decide(reason: Reason, detail: str, policy: RetryPolicy, history: Sequence[PastEnd], now: datetime) -> Outcome:
    """Start again, or end. `history` are the ends of earlier attempts, oldest first."""
    retry = MEANINGS[reason].retry
    if retry is Retry.NEVER:
        return Outcome(None, detail)
    window_start = now - timedelta(seconds=policy.window_seconds)
    same_class = [past for past in history if MEANINGS[past.reason].retry is retry and past.at >= window_start]
    allowed = policy.max_charged if retry is Retry.CHARGED else policy.max_free
    if len(same_class) >= allowed:
        times = "retry" if allowed == 1 else "retries"
        return Outcome(None, f"{detail} ({allowed} {retry.value} {times} used.)".strip())
    limit = MEANINGS[reason].max_retries
    if limit is not None and sum(past.reason is reason for past in same_class) >= limit:
        return Outcome(None, f"{detail} (It ended so after {limit} retries, too.)".strip())
    backoff = min(FIRST_BACKOFF * 2 ** len(same_class), MAX_BACKOFF)
    return Outcome(now + backoff, detail)
