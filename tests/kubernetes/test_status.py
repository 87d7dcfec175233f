"""What a Job and its pods say of an attempt, in states that pass quickly on a cluster."""

from typing import Any

from athanor.backends.base import Phase, Presence
from athanor.backends.kubernetes import names, status
from athanor.backends.kubernetes.state import JobState, PodState, job_state, pod_state

BEGAN = "2026-11-20T10:00:00Z"


def job(pods: int, **condition: str) -> JobState:
    return job_state({
        "metadata": {"name": "a", "namespace": "athanor-x", "uid": "1", "creationTimestamp": BEGAN},
        "spec": {"completions": pods, "template": {"spec": {}}},
        "status": {"startTime": BEGAN, "conditions": [{"status": "True", **condition}] if condition else []},
    })  # fmt: skip


def pod(index: int, phase: str, **state: Any) -> PodState:
    return pod_state({
        "metadata": {"name": f"a-{index}-x", "namespace": "athanor-x", "annotations": {names.INDEX: str(index)}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": phase, "containerStatuses": [{"state": state}]},
    })  # fmt: skip


def test_a_job_whose_pods_have_all_ended_does_not_run() -> None:
    """The Job controller notes their end a moment later. This one never ran: its command does not exist."""
    ended = pod(0, "Failed", terminated={"exitCode": 128, "reason": "StartError", "finishedAt": BEGAN})
    seen = status.observation(job(1), [ended], (), 0.0)
    assert (seen.presence, seen.phase) == (Presence.PRESENT, Phase.ENDING)
    one_runs = [ended, pod(1, "Running", running={"startedAt": BEGAN})]
    assert status.observation(job(2), one_runs, (), 0.0).phase is Phase.RUNNING
