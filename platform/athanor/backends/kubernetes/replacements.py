"""Runs that may lose nodes: the pods that replace lost ones, and the end of a run that its Job does not see. Pure.

A replacement may wait for a node for as long as it likes, while the others finish the run, or are too few for it. Then
the Job would stay active, so the observer ends it. It writes how the run ended into an annotation of the Job, since the
Job's own reason is then the deadline that ends it.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from athanor.backends.base import Cause, Observation, Presence
from athanor.backends.kubernetes.state import JobState, PodState

TOO_FEW = "TooFewPods"


def newest(pods: Iterable[PodState]) -> list[PodState]:
    """Return the newest pod of each index, in the order of indexes."""
    return list({pod.index: pod for pod in sorted(pods, key=lambda pod: (pod.index, pod.failures))}.values())


def nodes_of(pods: Iterable[PodState]) -> tuple[str, ...]:
    """Return the last node of each index that had one, in the order of indexes."""
    return tuple(pod.node for pod in newest(pod for pod in pods if pod.node))


def unreachable(pods: Iterable[PodState], lost: Collection[str]) -> list[PodState]:
    """Return the pods that should be ending and are on lost nodes: their kubelets do not report it."""
    return [pod for pod in pods if not pod.is_over and pod.is_deleted and pod.node in lost]


@dataclass(frozen=True)
class Census:
    """How the newest pods of a Job's indexes are. `waiting`: not lost, but without a node since the start."""

    succeeded: int
    present: int
    waiting: int

    @classmethod
    def of(cls, pods: Sequence[PodState], lost: Collection[str]) -> "Census":
        """Count the newest pods."""
        current = newest(pods)
        living = [pod for pod in current if not pod.is_over]
        placed = sum(1 for pod in living if pod.node)
        return cls(
            succeeded=sum(1 for pod in current if pod.phase == "Succeeded"),
            present=placed - len(unreachable(living, lost)),
            waiting=sum(1 for pod in living if not pod.node and not pod.failures),
        )


def is_at_its_end(job: JobState, pods: Sequence[PodState], lost: Collection[str]) -> bool:
    """Return whether a run that may lose nodes can only end, though its Job has not ended.

    Either all agents have ended but those of lost pods, or fewer are left than the run needs.
    """
    is_ending = job.is_over or job.ending is not None or job.is_deleted or job.is_cancelled or job.is_suspended
    if job.pods == job.nodes or is_ending or len(newest(pods)) < job.pods:
        return False
    census = Census.of(pods, lost)
    return not census.waiting and (not census.present or census.succeeded + census.present < job.nodes)


def write(verdict: Observation) -> str:
    """Return how a run ended, as an annotation."""
    return json.dumps(
        {
            "state": verdict.native_state, "reason": verdict.native_reason, "exit_status": verdict.exit_status,
            "cause": verdict.cause, "explanation": verdict.explanation, "nodes": verdict.nodes,
        }
    )  # fmt: skip


def read(text: str) -> Observation:
    """Return how a run ended, from the annotation."""
    found = json.loads(text)
    return Observation(
        Presence.FINISHED, found["state"], found["reason"], exit_status=found["exit_status"],
        cause=Cause(found["cause"]) if found["cause"] else None, explanation=found["explanation"],
        nodes=tuple(found["nodes"]),
    )  # fmt: skip
