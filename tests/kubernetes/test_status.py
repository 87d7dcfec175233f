"""What a Job and its pods say of an attempt, in states that pass quickly on a cluster."""

from typing import Any

import pytest

from athanor.backends.base import Obstacle, Phase, Presence
from athanor.backends.kubernetes import names, status
from athanor.backends.kubernetes.state import JobState, PodState, job_state, pod_state, seconds_of

BEGAN = "2026-11-20T10:00:00Z"


ROOM = 600.0


def job(pods: int, **condition: str) -> JobState:
    return job_state({
        "metadata": {"name": "a", "namespace": "athanor-x", "uid": "1", "creationTimestamp": BEGAN},
        "spec": {"completions": pods, "template": {"spec": {}}},
        "status": {"startTime": BEGAN, "conditions": [{"status": "True", **condition}] if condition else []},
    })  # fmt: skip


def pod(index: int, phase: str, node: str = "n1", **state: Any) -> PodState:
    placed = {"type": "PodScheduled", "status": "True" if node else "False", "lastTransitionTime": BEGAN}
    return pod_state({
        "metadata": {"name": f"a-{index}-x", "namespace": "athanor-x", "annotations": {names.INDEX: str(index)}},
        "spec": {"nodeName": node},
        "status": {
            "phase": phase, "containerStatuses": [{"state": state}] if state else [],
            "conditions": [placed if node else {**placed, "message": "0/1 nodes are available"}],
        },
    })  # fmt: skip


def test_a_job_whose_pods_have_all_ended_does_not_run() -> None:
    """The Job controller notes their end a moment later. This one never ran: its command does not exist."""
    ended = pod(0, "Failed", terminated={"exitCode": 128, "reason": "StartError", "finishedAt": BEGAN})
    seen = status.observation(job(1), [ended], (), 0.0, ROOM)
    assert (seen.presence, seen.phase) == (Presence.PRESENT, Phase.ENDING)
    one_runs = [ended, pod(1, "Running", running={"startedAt": BEGAN})]
    assert status.observation(job(2), one_runs, (), 0.0, ROOM).phase is Phase.RUNNING


def waiting(index: int, reason: str) -> PodState:
    return pod(index, "Pending", waiting={"reason": reason, "message": "it says why"})


RUNS = pod(0, "Running", running={"startedAt": BEGAN})
UNPLACED = pod(1, "Pending", node="")


@pytest.mark.parametrize(
    ("pods", "seconds", "gives_up"),
    [
        ([RUNS, UNPLACED], 599, None),
        ([RUNS, UNPLACED], 601, Obstacle.NO_ROOM),
        ([RUNS, waiting(1, "ImagePullBackOff")], 179, None),
        ([RUNS, waiting(1, "ImagePullBackOff")], 181, Obstacle.CANNOT_START),
        ([waiting(0, "ContainerCreating"), waiting(1, "ErrImageNeverPull")], 181, Obstacle.CANNOT_START),
        ([RUNS, waiting(1, "ContainerCreating")], 1700, None),  # an image is being loaded
        ([RUNS], 1700, None),  # the other pod is not created: its events say why
    ],
)
def test_what_does_not_start_is_given_up_after_a_time(
    pods: list[PodState], seconds: float, gives_up: Obstacle | None
) -> None:
    seen = status.observation(job(2), pods, (), (seconds_of(BEGAN) or 0.0) + seconds, ROOM)
    assert (seen.presence, seen.gives_up) == (Presence.PRESENT, gives_up)
    if gives_up is Obstacle.CANNOT_START:
        assert "cannot be started" in seen.explanation
        assert "it says why" in seen.explanation
