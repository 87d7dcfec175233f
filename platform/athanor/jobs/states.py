"""The states of jobs and attempts, and every move that is allowed. Pure data."""

from enum import StrEnum


class JobStatus(StrEnum):
    """Status of a job. Only jobs/transitions.py changes it."""

    QUEUED = "queued"
    ADMITTED = "admitted"
    DISPATCHING = "dispatching"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


S = JobStatus

ALLOWED: dict[JobStatus, frozenset[JobStatus]] = {
    S.QUEUED: frozenset({S.ADMITTED, S.CANCELLED, S.FAILED, S.EXPIRED}),
    S.ADMITTED: frozenset({S.DISPATCHING, S.QUEUED, S.CANCELLED, S.FAILED}),
    S.DISPATCHING: frozenset({S.STARTING, S.QUEUED, S.STOPPING, S.FAILED}),
    S.STARTING: frozenset({S.RUNNING, S.QUEUED, S.PAUSING, S.STOPPING, S.FAILED}),
    S.RUNNING: frozenset({S.SUCCEEDED, S.QUEUED, S.PAUSING, S.STOPPING, S.FAILED}),
    S.PAUSING: frozenset({S.PAUSED, S.QUEUED, S.STOPPING, S.FAILED}),
    S.PAUSED: frozenset({S.QUEUED, S.CANCELLED, S.EXPIRED}),
    S.STOPPING: frozenset({S.CANCELLED, S.SUCCEEDED, S.FAILED, S.EXPIRED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
    S.EXPIRED: frozenset(),
}
FINAL = frozenset(status for status, exits in ALLOWED.items() if not exits)
# Quota and slots are held from admission until the end is confirmed.
HOLDING = frozenset({S.ADMITTED, S.DISPATCHING, S.STARTING, S.RUNNING, S.PAUSING, S.STOPPING})


# Statuses in which a job can be asked to checkpoint and release its slots.
STOPPABLE_AT_CHECKPOINT = frozenset({S.STARTING, S.RUNNING})


class Desired(StrEnum):
    """What a user wants; written by what a user asks for, and PAUSE by the idle guard, too: a user resumes the job."""

    RUN = "run"
    PAUSE = "pause"
    STOP = "stop"


class Health(StrEnum):
    """Health of a live job, derived from its heartbeats and progress."""

    OK = "ok"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"
    HUNG = "hung"
    STRAGGLING = "straggling"


class AttemptStatus(StrEnum):
    """Status of an attempt. Only jobs/transitions.py changes it."""

    PREPARED = "prepared"
    SUBMITTED = "submitted"
    RUNNING = "running"
    ENDED = "ended"


A = AttemptStatus

ATTEMPT_ALLOWED: dict[AttemptStatus, frozenset[AttemptStatus]] = {
    A.PREPARED: frozenset({A.SUBMITTED, A.ENDED}),
    A.SUBMITTED: frozenset({A.RUNNING, A.ENDED}),
    A.RUNNING: frozenset({A.ENDED}),
    A.ENDED: frozenset(),
}
ATTEMPT_LIVE = frozenset({A.PREPARED, A.SUBMITTED, A.RUNNING})
