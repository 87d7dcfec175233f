"""From a Job and its pods to an observation. Pure.

A Job that has ended is FINISHED. So is a Job whose pods have all ended except those on lost nodes: their kubelets will
never report it, and the Job would wait forever; what may still run there is refused by the platform.
"""

from collections.abc import Collection, Sequence

from athanor.backends.base import Cause, Observation, Obstacle, Phase, Presence
from athanor.backends.kubernetes import replacements
from athanor.backends.kubernetes.state import KUBELET_DISRUPTION, Ended, JobState, PodState

LAUNCH_FAILURES = ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError")
SIGNALS = 128  # a container that was ended by signal n has exit code 128 + n
BY_DELETION = (None, SIGNALS + 9, SIGNALS + 15)
SLOW_END_SECONDS = 30.0
# Reasons of a container that waits, by which it waits until somebody changes something, or a registry answers again.
CANNOT_START = frozenset({
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
    "RegistryUnavailable", "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
})  # fmt: skip
CANNOT_START_SECONDS = 180.0  # from when the pod has its node: an image may take longer, but is not an error then


def observation(
    job: JobState, pods: Sequence[PodState], lost: Collection[str], now: float, room_seconds: float
) -> Observation:
    """Return the observation of an attempt.

    `lost`: names of nodes that do not answer; `now`: seconds since the epoch by the server's clock; `room_seconds`: for
    how long pods may wait for nodes.
    """
    pods = sorted(pods, key=lambda pod: (pod.index, pod.failures))
    nodes = replacements.nodes_of(pods)
    if job.verdict and (job.is_over or not replacements.Census.of(pods, lost).present):
        return replacements.read(job.verdict)
    if job.complete:
        return Observation(Presence.FINISHED, "Complete", exit_status=0, nodes=nodes)
    if job.failed is not None:
        return _finished(job, pods, job.failed, nodes)
    if _was_evicted(job):
        return Observation(
            Presence.FINISHED, "Suspended", "", cause=Cause.PREEMPTED, nodes=nodes,
            explanation="The Job was suspended after it had started: its place went to another.",
        )  # fmt: skip
    current = replacements.newest(pods)
    gone = replacements.unreachable(current, lost)
    if gone and len(current) == job.pods and all(pod.is_over or pod in gone for pod in current):
        return _lost(job, gone, nodes)
    return _present(job, current, nodes, now, room_seconds)


def verdict(job: JobState, pods: Sequence[PodState], lost: Collection[str]) -> Observation:
    """Return how a run ends that `replacements.is_at_its_end`."""
    nodes = replacements.nodes_of(pods)
    succeeded = replacements.Census.of(pods, lost).succeeded
    ended = Ended(replacements.TOO_FEW, f"fewer than {job.nodes} pods are left")
    if succeeded >= job.nodes:
        return _completed(Ended("LostPods", "the others succeeded"), nodes)
    gone = replacements.unreachable(replacements.newest(pods), lost)
    if gone and not any(pod.disruption for pod in pods if pod not in gone):
        return _lost(job, gone, nodes)
    return _finished(job, pods, ended, nodes)


def _lost(job: JobState, gone: Sequence[PodState], nodes: tuple[str, ...]) -> Observation:
    names = ", ".join(sorted({pod.node for pod in gone}))
    return Observation(
        Presence.FINISHED, "NodeLost", gone[0].disruption, nodes=nodes, explanation=f"Lost with its node: {names}.",
        cause=Cause.SPOT_RECLAIMED if job.is_spot else Cause.NODE_LOST,
    )  # fmt: skip


def _completed(ended: Ended, nodes: tuple[str, ...]) -> Observation:
    return Observation(
        Presence.FINISHED, "Complete", f"{ended.reason}: {ended.message}", exit_status=0, nodes=nodes,
        explanation="Pods were lost, and the others finished the run.",
    )  # fmt: skip


def may_be_lost(job: JobState, pods: Sequence[PodState], now: float) -> set[str]:
    """Return nodes whose state must be read first: their pods should be ending, and have not ended."""
    if job.is_over:
        return set()
    return {
        pod.node
        for pod in pods
        if pod.is_deleted
        and not pod.is_over
        and pod.node
        and (pod.disruption == "DeletionByTaintManager" or now > (pod.must_end_at or now) + SLOW_END_SECONDS)
    }


def _was_evicted(job: JobState) -> bool:
    """Return whether the Job was suspended after it had started.

    A Job of a queue is created suspended, resumed by the second generation of its specification, and stopped by the
    third; one without a queue is never created suspended. Our own cancel is a generation, too.
    """
    if not job.is_suspended or job.is_cancelled:
        return False
    return job.generation >= (3 if job.queue else 2)


def _present(
    job: JobState, pods: Sequence[PodState], nodes: tuple[str, ...], now: float, room_seconds: float
) -> Observation:
    """Return the observation from the newest pods. A run does not wait for those that replace lost ones."""
    living = [pod for pod in pods if not pod.is_over]
    original = [pod for pod in living if not pod.failures]
    first = [pod for pod in pods if not pod.failures]
    started = [pod.started for pod in first if pod.started is not None]
    are_started = len(pods) == job.pods and len(started) == len(first)
    running = max(0.0, now - max(started)) if started and are_started else None
    left = None
    if started and job.deadline_seconds is not None:
        left = max(0.0, min(started) + job.deadline_seconds - now)

    def present(
        phase: Phase, state: str, reason: str = "", explanation: str = "", gives_up: Obstacle | None = None
    ) -> Observation:
        return Observation(
            Presence.PRESENT, state, reason[:500], phase=phase, explanation=explanation, nodes=nodes,
            running_seconds=running if phase in (Phase.RUNNING, Phase.ENDING) else None, seconds_left=left,
            gives_up=gives_up,
        )  # fmt: skip

    if job.ending is not None or job.verdict or job.is_deleted or (living and all(pod.is_deleted for pod in living)):
        reason = job.ending.reason if job.ending is not None else ""
        return present(Phase.ENDING, "Terminating", reason, "Its pods are being ended.")
    if job.is_suspended:
        where = f"in Kueue's queue {job.queue}" if job.queue else "until the Job is resumed"
        return present(Phase.PENDING, "Suspended", "", f"It waits {where}.")
    if unplaced := next((pod for pod in original if not pod.node), None):
        waiting = sum(1 for pod in original if not pod.node)
        said = unplaced.unschedulable or "The scheduler has not looked at it yet."
        waits_long = any(pod.unschedulable and _seconds_at(pod, now) > room_seconds for pod in original)
        return present(
            Phase.PENDING, "Pending", unplaced.unschedulable, f"{waiting} of {job.pods} pods have no node. {said}",
            Obstacle.NO_ROOM if waits_long else None,
        )  # fmt: skip
    if pods and not living:
        return present(Phase.ENDING, "Terminating", "", "Its pods have ended.")
    if len(pods) < job.pods:
        return present(Phase.PENDING, "Pending", "", f"{job.pods - len(pods)} of {job.pods} pods are not created yet.")
    slow = [pod for pod in original if pod.phase != "Running"]
    if slow:
        stuck = [pod for pod in slow if pod.waiting.partition(":")[0] in CANNOT_START]
        shown = next(iter(stuck), slow[0])
        said = (
            f"Pod {shown.name} on {shown.node} {'cannot be' if stuck else 'is being'} started. {shown.waiting}".strip()
        )
        waits_long = any(_seconds_at(pod, now) > CANNOT_START_SECONDS for pod in stuck)
        return present(Phase.STARTING, "Starting", shown.waiting, said, Obstacle.CANNOT_START if waits_long else None)
    return present(Phase.RUNNING, "Running", explanation=_missing(pods))


def _seconds_at(pod: PodState, now: float) -> float:
    """Return for how long a pod has had its node, or has been without one."""
    return 0.0 if pod.placed_at is None else now - pod.placed_at


def _missing(pods: Sequence[PodState]) -> str:
    """Return which pods are lost or replaced and do not run, in words; empty if none are."""
    for pod in pods:
        if pod.phase == "Failed":
            return f"Pod {pod.name} was lost; the others run."
        if pod.failures and not pod.node:
            return f"Pod {pod.name}, which replaces a lost one, has no node. {pod.unschedulable}".strip()
        if pod.failures and pod.phase == "Pending":
            return f"Pod {pod.name}, which replaces a lost one, is being started. {pod.waiting}".strip()
    return ""


def _finished(job: JobState, pods: Sequence[PodState], ended: Ended, nodes: tuple[str, ...]) -> Observation:
    failures = [pod for pod in pods if pod.phase == "Failed"]
    # Pods that failed by themselves come before those that were deleted then, which may end in the same second.
    failures.sort(key=lambda pod: (pod.is_deleted, pod.exit_code in BY_DELETION, pod.ended or float("inf"), pod.index))
    if ended.reason == "FailedIndexes" and job.succeeded >= job.nodes:
        return _completed(ended, nodes)
    first = failures[0] if failures else None
    status = _status(first)
    cause, explanation = _cause(job, ended, pods, failures, first)
    if (
        cause in (Cause.NODE_LOST, Cause.CANCELLED, Cause.DELETED)
        and first is not None
        and first.exit_code in BY_DELETION
    ):
        status = None  # it says only how the pod was taken away
    return Observation(
        Presence.FINISHED, "Failed", f"{ended.reason}: {ended.message}".strip(": ")[:500],
        exit_status=status, cause=cause, explanation=explanation, nodes=nodes,
    )  # fmt: skip


def _status(pod: PodState | None) -> int | None:
    if pod is None or pod.exit_code is None:
        return None
    return SIGNALS - pod.exit_code if SIGNALS < pod.exit_code < SIGNALS + 65 else pod.exit_code


def _cause(
    job: JobState, ended: Ended, pods: Sequence[PodState], failures: Sequence[PodState], first: PodState | None
) -> tuple[Cause | None, str]:
    if job.is_cancelled and (ended.reason == "DeadlineExceeded" or first is None or first.exit_code in BY_DELETION):
        return Cause.CANCELLED, "It was cancelled."
    if ended.reason == "DeadlineExceeded":
        return Cause.TIME_LIMIT, "Its Job's deadline, which somebody set there, has passed."
    if overdue := next((pod for pod in failures if pod.is_overdue), None):
        return Cause.TIME_LIMIT, f"Pod {overdue.name} ran for longer than {job.deadline_seconds} seconds."
    for pod in failures:
        if pod.disruption:
            return disruption(job, pod.disruption, pod.disruption_message or pod.ended_message, pod.name)
    for pod in failures:
        if pod.ended_reason == "OOMKilled":
            return Cause.OUT_OF_MEMORY, f"Pod {pod.name} used more memory than its limit."
    if first is not None and first.ended_reason in LAUNCH_FAILURES:
        return Cause.LAUNCH_FAILED, f"Pod {first.name} could not be started: {first.ended_message}"
    if ended.reason == "PodFailurePolicy" and not failures:
        return disruption(job, "", ended.message, "")
    if all(pod.is_deleted for pod in failures) and (said := _deletion(pods)):
        return Cause.DELETED, said
    if not pods and ended.reason == "BackoffLimitExceeded":  # a pod that fails by itself stays
        return Cause.DELETED, "Somebody deleted its pods."
    if first is not None and first.ended_message:
        return None, first.ended_message
    return None, ""


def _deletion(pods: Sequence[PodState]) -> str:
    """Return which pod somebody deleted, in words; empty if nobody did. The Job deletes the others after it."""
    deleted = [pod for pod in pods if pod.is_deleted and not pod.disruption and pod.must_end_at is not None]
    first = min((pod.must_end_at or 0.0 for pod in deleted), default=None)
    candidates = [pod.name for pod in deleted if pod.must_end_at == first]
    if not candidates:
        return ""
    return f"Somebody deleted pod {candidates[0]}." if len(candidates) == 1 else "Somebody deleted one of its pods."


def disruption(job: JobState, reason: str, message: str, pod: str) -> tuple[Cause, str]:
    """Return why a pod was disrupted, by the reason of its condition DisruptionTarget or of an event."""
    subject = f"Pod {pod}" if pod else "A pod"
    if reason in ("DeletionByTaintManager", "DeletionByPodGC", "TaintManagerEviction"):
        cause = Cause.SPOT_RECLAIMED if job.is_spot else Cause.NODE_LOST
        return cause, f"{subject} was lost with its node: {message}"
    if reason == KUBELET_DISRUPTION and "low on resource: memory" in message:
        return Cause.OUT_OF_MEMORY, f"{subject} was evicted: {message}"
    if reason == KUBELET_DISRUPTION and "shutdown" in message:
        return Cause.SPOT_RECLAIMED if job.is_spot else Cause.NODE_LOST, f"The node of {subject.lower()} was shut down."
    return Cause.PREEMPTED, f"{subject} had to make room: {message or reason}"
