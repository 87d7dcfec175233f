"""Why a job waits or ended. Reason first: final status, retry class, blame and remedy follow from it. Pure data."""

from dataclasses import dataclass
from enum import StrEnum

from athanor.jobs.states import JobStatus


class Retry(StrEnum):
    FREE = "free"
    CHARGED = "charged"
    NEVER = "never"


class Blame(StrEnum):
    USER = "user"
    PLATFORM = "platform"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTOR = "preemptor"
    NOBODY = "nobody"


class Reason(StrEnum):
    # waiting
    QUOTA_EXCEEDED = "quota_exceeded"
    BUDGET_EXHAUSTED = "budget_exhausted"
    WAITING_FOR_CAPACITY = "waiting_for_capacity"
    WAITING_FOR_GANG = "waiting_for_gang"
    NOT_BEFORE = "not_before"
    HELD = "held"
    CLUSTER_DOWN = "cluster_down"
    DEPENDENCY = "dependency"
    PAUSED_BY_USER = "paused_by_user"
    WINDOW_CLOSED = "window_closed"
    RECLAIMED = "reclaimed"
    SPOT_NOTICE = "spot_notice"
    # ending
    COMPLETED = "completed"
    STOPPED_BY_USER = "stopped_by_user"
    STOPPED_BY_ADMIN = "stopped_by_admin"
    DEADLINE = "deadline"
    WAITED_TOO_LONG = "waited_too_long"
    DEPENDENCY_FAILED = "dependency_failed"
    DEADLINE_MISSED = "deadline_missed"
    OUT_OF_MEMORY = "out_of_memory"
    LOSS_DIVERGED = "loss_diverged"
    BAD_SPEC = "bad_spec"
    DATA_ERROR = "data_error"
    USER_ERROR = "user_error"
    HANG = "hang"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    PROCESS_KILLED = "process_killed"
    NODE_LOST = "node_lost"
    GPU_FAULT = "gpu_fault"
    PREEMPTED = "preempted"
    SPOT_RECLAIMED = "spot_reclaimed"
    STORAGE_ERROR = "storage_error"
    BACKEND_REJECTED = "backend_rejected"
    LAUNCH_FAILED = "launch_failed"
    PLATFORM_ERROR = "platform_error"
    STARTUP_TIMEOUT = "startup_timeout"
    UNKNOWN_LOSS = "unknown_loss"


@dataclass(frozen=True)
class Meaning:
    """`final` is None for a reason to wait. `message` and `remedy` are for people."""

    final: JobStatus | None
    retry: Retry
    blame: Blame
    message: str
    remedy: str


R, F, N = Reason, JobStatus.FAILED, Retry.NEVER


def _waits(blame: Blame, message: str, remedy: str) -> Meaning:
    return Meaning(None, Retry.NEVER, blame, message, remedy)


MEANINGS: dict[Reason, Meaning] = {
    R.QUOTA_EXCEEDED: _waits(
        Blame.NOBODY,
        "Its team's quota, or a limit above it, is reached.",
        "Starts when slots are given back; an administrator of the platform can raise the quota.",
    ),
    R.BUDGET_EXHAUSTED: _waits(
        Blame.NOBODY, "The team's budget is used up.", "Waits for the next period; an admin can raise the budget."
    ),
    R.WAITING_FOR_CAPACITY: _waits(
        Blame.NOBODY, "Not enough slots are free.", "Starts when running jobs end; fewer processes start sooner."
    ),
    R.WAITING_FOR_GANG: _waits(Blame.NOBODY, "Not all nodes are free at once.", "Starts when all can start together."),
    R.NOT_BEFORE: _waits(Blame.NOBODY, "Its start time has not come.", "Starts at not_before."),
    R.HELD: _waits(Blame.NOBODY, "It is on hold.", "Release it to let it start."),
    R.CLUSTER_DOWN: _waits(
        Blame.INFRASTRUCTURE, "The cluster takes no new jobs now.", "Starts when it does again; an admin knows why."
    ),
    R.DEPENDENCY: _waits(Blame.NOBODY, "Another job must end first.", "Starts after the jobs it names."),
    R.PAUSED_BY_USER: _waits(Blame.USER, "It is paused at a checkpoint.", "Resume it to let it go on."),
    R.WINDOW_CLOSED: _waits(
        Blame.USER,
        "Price or carbon is above the ceiling that its schedule sets.",
        "Starts when it falls below; a higher ceiling or an earlier deadline starts it sooner.",
    ),
    R.RECLAIMED: _waits(
        Blame.PREEMPTOR,
        "Its slots were needed by a job with a better claim to them.",
        "Goes on from its checkpoint when there is room; within its team's own quota nobody can reclaim.",
    ),
    R.SPOT_NOTICE: _waits(
        Blame.INFRASTRUCTURE,
        "The provider takes back the machine it ran on.",
        "Goes on from its checkpoint on another machine; a pool that is not spot keeps its machines.",
    ),
    R.COMPLETED: Meaning(JobStatus.SUCCEEDED, N, Blame.NOBODY, "The run finished.", "Download the model."),
    R.STOPPED_BY_USER: Meaning(JobStatus.CANCELLED, N, Blame.USER, "It was cancelled.", "Fork it to run it again."),
    R.STOPPED_BY_ADMIN: Meaning(
        JobStatus.CANCELLED, N, Blame.PLATFORM, "An administrator stopped it.", "Ask them, then fork it."
    ),
    R.DEADLINE: Meaning(
        F, N, Blame.USER, "It reached its time limit.", "Fork it with a larger time_limit_seconds or fewer steps."
    ),
    R.WAITED_TOO_LONG: Meaning(
        JobStatus.EXPIRED,
        N,
        Blame.NOBODY,
        "It waited for longer than its wait_limit_seconds.",
        "Fork it, with a larger limit or fewer processes.",
    ),
    R.DEADLINE_MISSED: Meaning(
        JobStatus.EXPIRED,
        N,
        Blame.NOBODY,
        "Its deadline passed before it could start.",
        "Fork it with a later schedule.deadline, fewer processes or another accelerator.",
    ),
    R.DEPENDENCY_FAILED: Meaning(
        F, N, Blame.USER, "A job that it was to come after did not succeed.", "Mend that job, then fork this one."
    ),
    R.OUT_OF_MEMORY: Meaning(
        F,
        Retry.CHARGED,
        Blame.USER,
        "A process ran out of memory.",
        "Fork it with activation_checkpointing full, micro_batch_sequences auto, shorter sequences or more processes.",
    ),
    R.LOSS_DIVERGED: Meaning(
        F,
        N,
        Blame.USER,
        "The loss was no longer a number.",
        "Fork it with a smaller learning_rate, more warmup_steps, or a gradient_clip.",
    ),
    R.BAD_SPEC: Meaning(F, N, Blame.USER, "The spec cannot be run.", "Mend the field named in the message."),
    R.DATA_ERROR: Meaning(
        F, N, Blame.USER, "The data cannot be used.", "Mend the data as the message says, upload it, and fork the job."
    ),
    R.USER_ERROR: Meaning(
        F, Retry.CHARGED, Blame.USER, "The training program failed.", "Look at the last lines of the log."
    ),
    R.HANG: Meaning(
        F, Retry.CHARGED, Blame.INFRASTRUCTURE, "No step finished for too long.", "Look at the stacks in the log."
    ),
    R.COLLECTIVE_TIMEOUT: Meaning(
        F, Retry.CHARGED, Blame.INFRASTRUCTURE, "The processes lost each other.", "Look for the first rank that failed."
    ),
    R.PROCESS_KILLED: Meaning(
        F,
        Retry.CHARGED,
        Blame.INFRASTRUCTURE,
        "A training process was killed from outside.",
        "Look at the machine's own log; often it ran out of memory.",
    ),
    R.NODE_LOST: Meaning(
        F, Retry.FREE, Blame.INFRASTRUCTURE, "The machine it ran on was lost.", "It was retried; see the cluster."
    ),
    R.GPU_FAULT: Meaning(
        F, Retry.FREE, Blame.INFRASTRUCTURE, "An accelerator failed.", "It was retried; have the device checked."
    ),
    R.PREEMPTED: Meaning(
        F, Retry.FREE, Blame.PREEMPTOR, "A job of higher right took its place.", "It continues when there is room."
    ),
    R.SPOT_RECLAIMED: Meaning(
        F, Retry.FREE, Blame.INFRASTRUCTURE, "The provider took the machine back.", "It continues when there is room."
    ),
    R.STORAGE_ERROR: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "The object store did not answer for too long.",
        "Check the store; the run continues from its last checkpoint when retried.",
    ),
    R.BACKEND_REJECTED: Meaning(
        F, N, Blame.USER, "The cluster refused the job.", "Mend what the cluster's message says."
    ),
    R.LAUNCH_FAILED: Meaning(
        F,
        Retry.CHARGED,
        Blame.INFRASTRUCTURE,
        "Its nodes could not start it.",
        "Mend what the cluster's message says: an image, a mount, a missing program.",
    ),
    R.PLATFORM_ERROR: Meaning(
        F, Retry.FREE, Blame.PLATFORM, "The platform made an error.", "It was retried; report the request id."
    ),
    R.STARTUP_TIMEOUT: Meaning(
        F,
        Retry.CHARGED,
        Blame.INFRASTRUCTURE,
        "No first step came in time.",
        "Look at the start-up phases and the log.",
    ),
    R.UNKNOWN_LOSS: Meaning(
        F, Retry.FREE, Blame.INFRASTRUCTURE, "It vanished from its cluster without a trace.", "It was retried."
    ),
}


def explain(reason: str, detail: str = "", *, trains: bool = True) -> dict[str, str] | None:
    """What API, CLI and dashboard show. `trains`: else the job only prepared data, and there is no model."""
    if not reason:
        return None
    meaning = MEANINGS[Reason(reason)]
    message = f"{meaning.message} {detail[:1].upper()}{detail[1:]}".strip()
    remedy = meaning.remedy if trains or reason != Reason.COMPLETED.value else "Train on the data set."
    return {"code": reason, "message": message, "remedy": remedy, "blame": meaning.blame.value}
