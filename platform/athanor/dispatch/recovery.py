"""What follows from the end of an attempt. Pure: reason, policy and history in, outcome out."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from athanor.jobs.reasons import MEANINGS, Reason, Retry
from athanor.specs.v1 import RetryPolicy
from trainer.contract.run import EXIT_STATUS, AttemptEnd, EndClass

REASON_OF_END: dict[EndClass, Reason] = {
    EndClass.COMPLETED: Reason.COMPLETED,
    # Nobody of ours asked for it: the machine was shut down, or its scheduler wanted the place.
    EndClass.STOPPED: Reason.PREEMPTED,
    EndClass.BAD_SPEC: Reason.BAD_SPEC,
    EndClass.DATA_ERROR: Reason.DATA_ERROR,
    EndClass.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    EndClass.LOSS_DIVERGED: Reason.LOSS_DIVERGED,
    EndClass.STORAGE_ERROR: Reason.STORAGE_ERROR,
    EndClass.COLLECTIVE_TIMEOUT: Reason.COLLECTIVE_TIMEOUT,
    EndClass.PROCESS_KILLED: Reason.PROCESS_KILLED,
    EndClass.PLATFORM_UNREACHABLE: Reason.PLATFORM_ERROR,
    EndClass.USER_ERROR: Reason.USER_ERROR,
    EndClass.INTERNAL_ERROR: Reason.USER_ERROR,
}
FIRST_BACKOFF = timedelta(seconds=2)
LONGEST_BACKOFF = timedelta(minutes=10)


@dataclass(frozen=True)
class PastEnd:
    reason: Reason
    at: datetime


@dataclass(frozen=True)
class Outcome:
    """`retry_at` is None when the job ends."""

    retry_at: datetime | None
    detail: str = ""


def reason_of_end(
    report: AttemptEnd | None, *, exit_status: int | None, native_state: str, native_reason: str
) -> tuple[Reason, str]:
    """Why an attempt ended, from the best witness: the agent's report, its exit status, the backend's words."""
    if report is not None:
        return REASON_OF_END[report.end_class], report.message
    by_status = {status: end_class for end_class, status in EXIT_STATUS.items()}
    if exit_status is not None and exit_status in by_status:
        end_class = by_status[exit_status]
        if end_class is EndClass.COMPLETED:
            return Reason.UNKNOWN_LOSS, "It exited with 0 but left no report of its end."
        return REASON_OF_END[end_class], f"Exit status {exit_status}."
    if exit_status is not None and exit_status < 0:
        return Reason.PROCESS_KILLED, f"The agent was killed by signal {-exit_status}."
    if native_state == "vanished":
        return Reason.PROCESS_KILLED, native_reason
    return Reason.UNKNOWN_LOSS, native_reason


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
    backoff = min(FIRST_BACKOFF * 2 ** len(same_class), LONGEST_BACKOFF)
    return Outcome(now + backoff, detail)
