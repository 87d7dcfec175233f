"""Parse Slurm's output into jobs and observations. Unknown states give UNKNOWN."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from athanor.backends.base import Cause, Observation, Phase, Presence
from athanor.backends.slurm.reasons import CAUSES, EXPLANATIONS
from athanor.backends.slurm.script import NODE_UNUSABLE, RAN_BEFORE, REPLACEMENT

SIGNALLED = 128  # a shell's status for a program that a signal ended is this and the signal's number
LAST_SIGNAL = 64

# Terminal base states and failure flags, and the cause each implies.
ENDED: dict[str, Cause | None] = {
    "COMPLETED": None,
    "FAILED": None,
    "CANCELLED": Cause.CANCELLED,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "PREEMPTED": Cause.PREEMPTED,
    "NODE_FAIL": Cause.NODE_LOST,
    "BOOT_FAIL": Cause.LAUNCH_FAILED,
    "LAUNCH_FAILED": Cause.LAUNCH_FAILED,
    "RECONFIG_FAIL": Cause.LAUNCH_FAILED,
    "OUT_OF_MEMORY": Cause.OUT_OF_MEMORY,
}
# Non-terminal base states and flags, the one that says most of the job first.
ACTIVE: dict[str, Phase] = {
    "COMPLETING": Phase.ENDING,
    "STAGE_OUT": Phase.ENDING,
    "REQUEUED": Phase.PENDING,
    "REQUEUE_HOLD": Phase.PENDING,
    "REQUEUE_FED": Phase.PENDING,
    "SPECIAL_EXIT": Phase.PENDING,
    "RESV_DEL_HOLD": Phase.PENDING,
    "CONFIGURING": Phase.STARTING,
    "POWER_UP_NODE": Phase.STARTING,
    "PENDING": Phase.PENDING,
    "SUSPENDED": Phase.RUNNING,
    "STOPPED": Phase.RUNNING,
    "SIGNALING": Phase.RUNNING,
    "RESIZING": Phase.RUNNING,
    "RUNNING": Phase.RUNNING,
}
IGNORED = frozenset({"UPDATE_DB", "EXPEDITING"})
NO_REASON = frozenset({"", "None", "N/A", "(null)"})


@dataclass(frozen=True)
class SlurmJob:
    """A job as squeue, sacct or slurmrestd reports it. Durations are in seconds; None is unknown or unlimited.

    `state`: the base state and flags. `status`, `signal`: of the batch script, once it has ended. `comment`: empty from
    sacct, since few clusters account it.
    """

    number: int
    name: str
    state: frozenset[str]
    reason: str = ""
    status: int | None = None
    signal: int = 0
    restarts: int = 0
    running_seconds: float | None = None
    seconds_left: float | None = None
    starts_in_seconds: float | None = None
    was_preempted: bool = False
    nodes: tuple[str, ...] = ()
    comment: str = ""

    @property
    def replaces(self) -> tuple[int, int] | None:
        """Return node index and number of the request, if the job replaces a lost node of the attempt of its name."""
        found = REPLACEMENT.fullmatch(self.comment)
        return None if found is None else (int(found[1]), int(found[2]))

    @property
    def is_alive(self) -> bool:
        """Return whether the job is in a non-terminal state."""
        return self.presence is Presence.PRESENT

    @property
    def presence(self) -> Presence:
        """Return whether the job is present or finished; UNKNOWN for unknown states."""
        known = self.state - IGNORED
        if not known or not known <= (ENDED.keys() | ACTIVE.keys()):
            return Presence.UNKNOWN
        if known & ACTIVE.keys():
            return Presence.PRESENT
        return Presence.FINISHED


def pick_attempt_job(job: SlurmJob, other: SlurmJob | None, number: str = "") -> SlurmJob:
    """Return the job that represents the attempt, of two of one name.

    Prefer one that is not a second start, then the one with this `number`.
    """
    if other is None:
        return job

    def rank(each: SlurmJob) -> tuple[bool, bool, int, int]:
        return (each.status == RAN_BEFORE, str(each.number) != number, each.number, -each.restarts)

    return min(job, other, key=rank)


def best(jobs: Iterable[SlurmJob], comment: str) -> SlurmJob | None:
    """Return the job that was asked for with this comment, of all jobs of one name; None without any.

    An attempt's own job is found whatever its comment is, since an administrator may change it.
    """
    found: SlurmJob | None = None
    for job in jobs:
        if job.comment == comment or not (job.replaces or REPLACEMENT.fullmatch(comment)):
            found = pick_attempt_job(job, found)
    return found


def with_replacements(attempt: Observation, jobs: Sequence[SlurmJob]) -> Observation:
    """Return the observation of an attempt with what the jobs that replace its lost nodes add: those that wait or run,
    and the nodes on which they run, or ran, if the attempt's own job has ended."""
    if attempt.presence is Presence.FINISHED:
        counted = [job for job in jobs if "NODE_FAIL" not in job.state]
    else:
        counted = [job for job in jobs if to_observation(job).phase is Phase.RUNNING]
    others = dict.fromkeys(node for job in counted for node in job.nodes if node not in attempt.nodes)
    unended = {job.replaces for job in jobs if job.replaces and job.presence is not Presence.FINISHED}
    return replace(attempt, nodes=(*attempt.nodes, *others), replacements=frozenset(unended))


def parse_state(state: str | Iterable[str]) -> frozenset[str]:
    """Return the base state and flags of a state as Slurm writes it.

    Examples: `CANCELLED by 0`, `COMPLETING+`, `RUNNING+COMPLETING`, or a list of words.
    """
    if not isinstance(state, str):
        return frozenset(word.upper() for word in state)
    first = state.split(" ")[0].upper()
    return frozenset(word for word in re.split(r"[+,]", first) if word)


def to_observation(job: SlurmJob) -> Observation:
    """Return the observation of a job."""
    native = "+".join(sorted(job.state, key=lambda word: (word in ACTIVE, word)))
    reason = "" if job.reason in NO_REASON else job.reason
    presence = job.presence
    if presence is Presence.UNKNOWN:
        said = f"Slurm says {native or 'nothing'}, which this version of the platform does not know."
        return Observation(Presence.UNKNOWN, native, reason, explanation=said)
    if job.restarts and "COMPLETING" not in job.state:
        # Our run has ended; a restart by Slurm ends itself immediately.
        said = "Somebody requeued the job in Slurm; the platform restarts jobs by itself."
        return Observation(
            Presence.FINISHED, native, reason, cause=Cause.PREEMPTED, explanation=said, restarts=job.restarts
        )
    if presence is Presence.FINISHED:
        return _ended(job, native, reason)
    word = next(word for word in ACTIVE if word in job.state)
    phase = ACTIVE[word]
    explanation = EXPLANATIONS.get(word, "")
    if phase is Phase.PENDING:
        explanation = (
            explain_pending_reason(reason) if reason else "It is in Slurm's queue; Slurm has not looked at it yet."
        )
    return Observation(
        Presence.PRESENT,
        native,
        reason,
        phase=phase,
        explanation=explanation,
        running_seconds=job.running_seconds if phase is not Phase.PENDING else None,
        starts_in_seconds=job.starts_in_seconds if phase is Phase.PENDING else None,
        seconds_left=job.seconds_left if phase is not Phase.PENDING else None,
        nodes=job.nodes,
        restarts=job.restarts,
    )


def _ended(job: SlurmJob, native: str, reason: str) -> Observation:
    status = exit_status(job.status, job.signal)
    cause = next((cause for word, cause in ENDED.items() if word in job.state and cause is not None), None)
    if cause in (None, Cause.CANCELLED) and job.was_preempted:
        cause = Cause.PREEMPTED  # it ended by itself within the time that it was left
    if cause is None and "FAILED" in job.state:
        cause = CAUSES.get(reason) or (Cause.LAUNCH_FAILED if status == NODE_UNUSABLE else None)
    explanation = EXPLANATIONS.get(cause.value, "") if cause else ""
    if status == RAN_BEFORE:
        explanation = "Slurm started it a second time in spite of --no-requeue; the second start ended immediately."
    if cause is not None and status == 0:
        status = None  # nothing of it ran to an end
    return Observation(
        Presence.FINISHED, native, reason, exit_status=status, cause=cause, explanation=explanation,
        running_seconds=job.running_seconds, nodes=job.nodes, restarts=job.restarts,
    )  # fmt: skip


def exit_status(status: int | None, signal: int = 0) -> int | None:
    """Return the status as of a child process: a signal is a negative number."""
    if signal:
        return -signal
    if status is not None and SIGNALLED < status <= SIGNALLED + LAST_SIGNAL:
        return -(status - SIGNALLED)
    return status


def explain_pending_reason(reason: str) -> str:
    """Return a sentence for users; empty for an unknown reason."""
    if reason.startswith(("ReqNodeNotAvail", "(ReqNodeNotAvail")):
        return EXPLANATIONS["ReqNodeNotAvail"]
    found = EXPLANATIONS.get(reason, "")
    if not found and re.match(r"(QOS|Assoc|MaxJobs|MaxSubmit)", reason):
        return EXPLANATIONS["limit"]
    return found


def wait_status(text: str) -> tuple[int | None, int]:
    """Return exit status and signal, from `83:0` or from the number that wait() returns."""
    first, colon, second = text.strip().partition(":")
    if not first.isdigit():
        return None, 0
    if colon:
        return int(first), int(second or 0)
    return int(first) >> 8, int(first) & 0x7F


def parse_duration(text: str) -> float | None:
    """Return the seconds of `1-02:03:04`, `02:03:04` or `03:04`; None for UNLIMITED, N/A and the like."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def expand_hostlist(text: str) -> list[str]:
    """Return the names of a host list: `n[1-2,05-06],m` gives n1, n2, n05, n06, m."""
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        names = [""]
        for plain, ranges in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", part):
            names = [name + plain + number for name in names for number in (_numbers(ranges) if ranges else [""])]
        found += names
    return [name for name in found if name not in ("(null)", "None assigned", "None")]


def _numbers(ranges: str) -> list[str]:
    found = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last or first) + 1)]
    return found
