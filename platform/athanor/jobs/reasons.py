"""Why a job waits or ended. Reason first: final status, retry class, blame and remedy follow from it. Pure data."""

from dataclasses import dataclass
from enum import StrEnum

from athanor.core.runbooks import PREFIX, shared_path
from athanor.jobs.states import JobStatus
from trainer.contract.run import EndClass


class Retry(StrEnum):
    """Whether an ended attempt is retried: without limit, against `retry.max_charged`, or not."""

    FREE = "free"
    CHARGED = "charged"
    NEVER = "never"


class Blame(StrEnum):
    """Who caused an end."""

    USER = "user"
    PLATFORM = "platform"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTOR = "preemptor"
    NOBODY = "nobody"


class Reason(StrEnum):
    # waiting
    """Why a job waits or ended. MEANINGS has the message and remedy of each."""

    QUOTA_EXCEEDED = "quota_exceeded"
    BUDGET_EXHAUSTED = "budget_exhausted"
    WAITING_FOR_CAPACITY = "waiting_for_capacity"
    WAITING_FOR_GANG = "waiting_for_gang"
    NOT_BEFORE = "not_before"
    HELD = "held"
    CLUSTER_DOWN = "cluster_down"
    DEPENDENCY = "dependency"
    PAUSED_BY_USER = "paused_by_user"
    IDLE = "idle"
    WINDOW_CLOSED = "window_closed"
    RECLAIMED = "reclaimed"
    SPOT_NOTICE = "spot_notice"
    NO_ROOM = "no_room"
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
    DEVICE_EXCEPTION = "device_exception"
    SILENT_CORRUPTION = "silent_corruption"
    SLOW_NODE = "slow_node"
    NODE_JOINED = "node_joined"
    NETWORK_ERROR = "network_error"
    PREEMPTED = "preempted"
    INTERRUPTED = "interrupted"
    SPOT_RECLAIMED = "spot_reclaimed"
    STORAGE_ERROR = "storage_error"
    CHECKPOINT_DAMAGED = "checkpoint_damaged"
    NODE_STORAGE_ERROR = "node_storage_error"
    NODE_UNFIT = "node_unfit"
    VERSIONS_DIFFER = "versions_differ"
    BACKEND_REJECTED = "backend_rejected"
    LAUNCH_FAILED = "launch_failed"
    CANNOT_START = "cannot_start"
    PLATFORM_ERROR = "platform_error"
    TRAINER_ERROR = "trainer_error"
    STARTUP_TIMEOUT = "startup_timeout"
    UNKNOWN_LOSS = "unknown_loss"


@dataclass(frozen=True)
class Meaning:
    """`final` is None for a reason to wait. `message` and `remedy` are for people. `max_retries`: no more retries after
    this reason in a window, though the policy would allow them, since more would end in the same way."""

    final: JobStatus | None
    retry: Retry
    blame: Blame
    message: str
    remedy: str
    max_retries: int | None = None


R, F, N = Reason, JobStatus.FAILED, Retry.NEVER


def _waits(blame: Blame, message: str, remedy: str) -> Meaning:
    return Meaning(None, Retry.NEVER, blame, message, remedy)


MEANINGS: dict[Reason, Meaning] = {
    R.QUOTA_EXCEEDED: _waits(
        Blame.NOBODY,
        "The quota of its team, or a limit above it, is reached.",
        "Starts when slots are released; a platform administrator can raise the quota.",
    ),
    R.BUDGET_EXHAUSTED: _waits(
        Blame.NOBODY, "The team's budget is used up.", "Waits for the next period; an admin can raise the budget."
    ),
    R.WAITING_FOR_CAPACITY: _waits(
        Blame.NOBODY, "Not enough slots are free.", "Starts when running jobs release enough slots."
    ),
    R.WAITING_FOR_GANG: _waits(
        Blame.NOBODY, "Not enough nodes are free at the same time.", "Starts when all its nodes can start together."
    ),
    R.NOT_BEFORE: _waits(Blame.NOBODY, "Its start time is in the future.", "Starts at its schedule.not_before."),
    R.HELD: _waits(Blame.NOBODY, "It is on hold.", "Resume it to let it start."),
    R.CLUSTER_DOWN: _waits(
        Blame.INFRASTRUCTURE,
        "The cluster is not accepting jobs.",
        "Starts when the cluster accepts jobs again; see the cluster's page.",
    ),
    R.DEPENDENCY: _waits(Blame.NOBODY, "Another job must end first.", "Starts after the jobs it names."),
    R.PAUSED_BY_USER: _waits(Blame.USER, "It is paused at a checkpoint.", "Resume it to continue."),
    R.IDLE: _waits(
        Blame.USER,
        "It held slots without progress for longer than a limit of its team allows, and was paused.",
        "Find out what it waited for: its log and start-up phases. Then resume it to continue from its checkpoint.",
    ),
    R.WINDOW_CLOSED: _waits(
        Blame.USER,
        "Price or carbon intensity is above the ceiling in its schedule.",
        "Starts when it falls below; to start sooner, cancel it and fork it with a higher ceiling or an earlier "
        "schedule.deadline.",
    ),
    R.RECLAIMED: _waits(
        Blame.PREEMPTOR,
        "A job with a higher claim reclaimed its slots.",
        "Resumes from its checkpoint when slots are free; slots within its team's own quota cannot be reclaimed.",
    ),
    R.SPOT_NOTICE: _waits(
        Blame.INFRASTRUCTURE,
        "The provider is reclaiming its spot machine.",
        "Resumes from its checkpoint on another machine; on-demand pools are not reclaimed.",
    ),
    R.NO_ROOM: _waits(
        Blame.INFRASTRUCTURE,
        "Its cluster found no nodes with room for it, so it has released its slots.",
        "Starts again by itself after a pause, which is longer each time; a job of fewer nodes or processes may fit.",
    ),
    R.COMPLETED: Meaning(JobStatus.SUCCEEDED, N, Blame.NOBODY, "The run finished.", "Download the model."),
    R.STOPPED_BY_USER: Meaning(JobStatus.CANCELLED, N, Blame.USER, "It was cancelled.", "Fork it to run it again."),
    R.STOPPED_BY_ADMIN: Meaning(
        JobStatus.CANCELLED, N, Blame.PLATFORM, "An administrator stopped it.", "Ask them, then fork it."
    ),
    R.DEADLINE: Meaning(
        F,
        N,
        Blame.USER,
        "It reached its time limit.",
        "Fork it with a larger time_limit_seconds or fewer training.steps.",
    ),
    R.WAITED_TOO_LONG: Meaning(
        JobStatus.EXPIRED,
        N,
        Blame.NOBODY,
        "It waited for longer than its wait_limit_seconds.",
        "Fork it with a larger wait_limit_seconds, or with fewer resources.nodes or resources.processes_per_node.",
    ),
    R.DEADLINE_MISSED: Meaning(
        JobStatus.EXPIRED,
        N,
        Blame.NOBODY,
        "Its deadline passed before it could start.",
        "Fork it with a later schedule.deadline, fewer resources.processes_per_node or another resources.accelerator.",
    ),
    R.DEPENDENCY_FAILED: Meaning(
        F, N, Blame.USER, "A job that it depends on did not succeed.", "Fix that job, then fork this one."
    ),
    R.OUT_OF_MEMORY: Meaning(
        F,
        Retry.CHARGED,
        Blame.USER,
        "A process ran out of memory.",
        "Fork it with training.parallelism.micro_batch_sequences auto, training.activation_checkpointing full, a "
        "shorter training.sequence_length or more resources.processes_per_node.",
    ),
    R.LOSS_DIVERGED: Meaning(
        F,
        N,
        Blame.USER,
        "Its loss diverged: it became NaN or infinite, or stayed far above that of earlier steps.",
        "Fork it with a smaller training.optimizer.learning_rate, more training.schedule.warmup_steps or a smaller "
        "training.optimizer.gradient_clip.",
    ),
    R.BAD_SPEC: Meaning(F, N, Blame.USER, "The spec is not runnable.", "Fix the field named in the message."),
    R.DATA_ERROR: Meaning(
        F,
        N,
        Blame.USER,
        "The data is unusable.",
        "As the message says, correct the spec and fork the job, or correct the data, upload it under a new name and "
        "fork the job with that source.",
    ),
    R.USER_ERROR: Meaning(
        F, Retry.CHARGED, Blame.USER, "The training program failed.", "See the last lines of the log."
    ),
    R.HANG: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "Its processes hung.",
        "The log has the stack of each rank; have the node checked if it is named again. If a process only waited for "
        "slow data, fork it with a larger retry.hang_seconds.",
    ),
    R.COLLECTIVE_TIMEOUT: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "A collective operation timed out, or lost one of its processes.",
        "Find the first rank that failed in the log.",
    ),
    R.PROCESS_KILLED: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "A training process was killed from outside.",
        "See the node's system log; often the node ran out of memory.",
    ),
    R.NODE_LOST: Meaning(
        F, Retry.FREE, Blame.INFRASTRUCTURE, "Its node was lost.", "The cluster's page shows the node."
    ),
    R.GPU_FAULT: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "An accelerator, its links or its driver failed.",
        "Have the device checked. Where its pool has other nodes, the job does not return to the node.",
    ),
    R.DEVICE_EXCEPTION: Meaning(
        F,
        Retry.FREE,
        Blame.PLATFORM,
        "A kernel failed on an accelerator, by an error of the program or of the device.",
        "A retry runs on other nodes where its pool has them. If it fails there too, report the id of the job to a "
        "platform administrator; if not, have the device checked.",
        max_retries=2,
    ),
    R.SILENT_CORRUPTION: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "A processor or its memory had wrong values: ranks with the same parameters differed.",
        "Have the devices of the ranks that the detail names checked, and their memory.",
    ),
    R.SLOW_NODE: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "A node computed much more slowly than the others.",
        "Have its clocks, temperatures and other processes checked: the chart of the node shows them.",
    ),
    R.NODE_JOINED: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "A node joined the run, which had lost one before: its processes restarted, to continue on more nodes.",
        "Nothing is to be done.",
    ),
    R.NETWORK_ERROR: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "The network between its nodes failed.",
        "Have the links and the name resolution of the nodes checked.",
    ),
    R.PREEMPTED: Meaning(
        F, Retry.FREE, Blame.PREEMPTOR, "A job with a higher claim preempted it.", "It waits until slots are free."
    ),
    R.INTERRUPTED: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "Its machine or its cluster stopped it.",
        "The log of the cluster may say who ended it.",
    ),
    R.SPOT_RECLAIMED: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "The provider reclaimed its spot machine.",
        "On-demand pools are not reclaimed.",
    ),
    R.STORAGE_ERROR: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "The object store failed: it was unavailable for too long, or an object is missing or was changed.",
        "Check the store.",
    ),
    R.CHECKPOINT_DAMAGED: Meaning(
        F,
        N,
        Blame.INFRASTRUCTURE,
        "None of its checkpoints can be read: they are damaged or missing in the object store.",
        "Have the object store checked; fork the job to train from the first step.",
    ),
    R.NODE_STORAGE_ERROR: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "A node could not write files: its disk is full or read-only, or too many files are open.",
        "Free space on the node, or raise its limit of open files.",
    ),
    R.NODE_UNFIT: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "The preflight found a node that is broken or slow, other nodes computed different gradients from the same "
        "data, or its programs have other versions than those of the other nodes.",
        "Have the node checked, or install the same versions on all nodes. Where its pool has other nodes, the job "
        "does not return to the node.",
    ),
    R.VERSIONS_DIFFER: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "Its nodes have different versions of a program, and no version is that of most of them.",
        "Install the same versions on all nodes, then fork it.",
        max_retries=2,
    ),
    R.BACKEND_REJECTED: Meaning(
        F, N, Blame.USER, "The cluster refused the job.", "Fix what the cluster's message names."
    ),
    R.LAUNCH_FAILED: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "Its nodes failed to start it.",
        "Fix what the cluster's message names: a mount, a missing program.",
    ),
    R.CANNOT_START: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "Its cluster could not start its processes.",
        "Have the image or the setting that the cluster's message names fixed, then fork it.",
        max_retries=2,
    ),
    R.PLATFORM_ERROR: Meaning(
        F,
        Retry.FREE,
        Blame.PLATFORM,
        "An internal error of the platform.",
        "Report the id of the job to a platform administrator.",
    ),
    R.TRAINER_ERROR: Meaning(
        F,
        Retry.FREE,
        Blame.PLATFORM,
        "An internal error of the trainer.",
        "See the last lines of the log, and report the id of the job to a platform administrator.",
        max_retries=2,
    ),
    R.STARTUP_TIMEOUT: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "The first step did not finish in time, which is 30 minutes from its launch.",
        "See the start-up phases, the log, and the nodes that did not join, if its detail names some.",
        max_retries=2,
    ),
    R.UNKNOWN_LOSS: Meaning(
        F,
        Retry.FREE,
        Blame.INFRASTRUCTURE,
        "It disappeared from its cluster.",
        "The log of the cluster may say who ended it.",
    ),
}


REASON_OF_END: dict[EndClass, Reason] = {
    EndClass.COMPLETED: Reason.COMPLETED,
    # Somebody else signalled the agent: of a stop that the platform has asked for, `finalise` gives its own reason.
    EndClass.STOPPED: Reason.INTERRUPTED,
    EndClass.BAD_SPEC: Reason.BAD_SPEC,
    EndClass.DATA_ERROR: Reason.DATA_ERROR,
    EndClass.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    EndClass.LOSS_DIVERGED: Reason.LOSS_DIVERGED,
    EndClass.STORAGE_ERROR: Reason.STORAGE_ERROR,
    EndClass.CHECKPOINT_DAMAGED: Reason.CHECKPOINT_DAMAGED,
    EndClass.NODE_STORAGE_ERROR: Reason.NODE_STORAGE_ERROR,
    EndClass.NODE_UNFIT: Reason.NODE_UNFIT,
    EndClass.VERSIONS_DIFFER: Reason.VERSIONS_DIFFER,
    EndClass.COLLECTIVE_TIMEOUT: Reason.COLLECTIVE_TIMEOUT,
    EndClass.HANG: Reason.HANG,
    EndClass.GPU_FAULT: Reason.GPU_FAULT,
    EndClass.SILENT_CORRUPTION: Reason.SILENT_CORRUPTION,
    EndClass.SLOW_NODE: Reason.SLOW_NODE,
    EndClass.DEVICE_EXCEPTION: Reason.DEVICE_EXCEPTION,
    EndClass.NETWORK_ERROR: Reason.NETWORK_ERROR,
    EndClass.PROCESS_KILLED: Reason.PROCESS_KILLED,
    EndClass.PLATFORM_UNREACHABLE: Reason.PLATFORM_ERROR,
    EndClass.USER_ERROR: Reason.USER_ERROR,
    EndClass.INTERNAL_ERROR: Reason.TRAINER_ERROR,
}


SHARED_RUNBOOKS: dict[str, tuple[Reason, ...]] = {
    "waiting": tuple(reason for reason, meaning in MEANINGS.items() if meaning.final is None),
    "limits": (R.DEADLINE, R.WAITED_TOO_LONG, R.DEADLINE_MISSED),
    "stopped": (R.STOPPED_BY_USER, R.STOPPED_BY_ADMIN, R.DEPENDENCY_FAILED),
    "taken-back": (R.PREEMPTED, R.SPOT_RECLAIMED, R.NODE_JOINED),
    "device": (R.GPU_FAULT, R.DEVICE_EXCEPTION),
    "network": (R.COLLECTIVE_TIMEOUT, R.NETWORK_ERROR),
    "ended-from-outside": (R.INTERRUPTED, R.UNKNOWN_LOSS),
    "unfit-nodes": (R.NODE_UNFIT, R.VERSIONS_DIFFER),
    "start": (R.LAUNCH_FAILED, R.CANNOT_START),
    "internal": (R.PLATFORM_ERROR, R.TRAINER_ERROR),
}
"""Pages of docs/runbooks/reasons/ for reasons with the same checks and remedies. Every other reason but `completed` has
a page with its code as the name."""


def runbook_of(reason: Reason) -> str:
    """Return the path of the runbook for a reason; "" for `completed`, which needs none."""
    if reason is Reason.COMPLETED:
        return ""
    return shared_path("reasons", SHARED_RUNBOOKS, reason) or f"{PREFIX}/reasons/{reason.value}"


CONTINUES = "A retry continues from the newest checkpoint."
NO_RETRIES = (
    "No free retry is left: when the cause is fixed, fork it, with a larger retry.max_free if it may happen again."
)


def explain(reason: str, detail: str = "", *, trains: bool = True, has_ended: bool = False) -> dict[str, str] | None:
    """Return the reason as API, CLI and dashboard show it.

    `trains`: False for jobs that only prepare data. `has_ended`: whether the job, not only an attempt, has ended.
    """
    if not reason:
        return None
    meaning = MEANINGS[Reason(reason)]
    message = f"{meaning.message} {detail[:1].upper()}{detail[1:]}".strip()
    remedy = meaning.remedy if trains or reason != Reason.COMPLETED.value else "Train on the data set."
    if meaning.retry is Retry.FREE and not has_ended:
        remedy += f" {CONTINUES}" if trains else ""
    elif meaning.retry is Retry.FREE and meaning.max_retries is None:
        remedy += f" {NO_RETRIES}"
    runbook = runbook_of(Reason(reason))
    return {"code": reason, "message": message, "remedy": remedy, "blame": meaning.blame.value, "runbook": runbook}
