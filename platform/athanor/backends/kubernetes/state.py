"""Summaries of Jobs and pods: a few fields of what the API returns, so that thousands fit into memory."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from athanor.backends.kubernetes import names

Json = dict[str, Any]
KUBELET_DISRUPTION = "TerminationByKubelet"


def seconds_of(text: str | None) -> float | None:
    """Return the seconds since the epoch of an RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp() if text else None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a Job ended, or will end: the reason and message of its condition."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class JobState:
    """The summary of a Job."""

    name: str
    namespace: str
    uid: str
    generation: int
    pods: int
    nodes: int  # of the pods, those that must end well; the others are expendable
    queue: str
    is_suspended: bool
    is_cancelled: bool  # by us
    is_spot: bool
    is_deleted: bool
    created: float
    started: float | None
    deadline_seconds: int | None  # of each pod, from its start
    succeeded: int
    complete: bool
    failed: Ended | None
    verdict: str  # how the run ended, where we had to end the Job; see replacements.py
    ending: Ended | None  # FailureTarget, SuccessCriteriaMet: its pods are still there

    @property
    def is_over(self) -> bool:
        """Return whether the Job is complete or has failed."""
        return self.complete or self.failed is not None


@dataclass(frozen=True, slots=True)
class PodState:
    """The summary of a pod."""

    name: str
    namespace: str
    attempt: str
    index: int
    failures: int  # of its index before it: it replaces a lost pod if there were some
    node: str
    phase: str
    is_deleted: bool
    must_end_at: float | None
    unschedulable: str
    placed_at: float | None  # since when it has its node, or has been without one
    waiting: str  # why its container is not started, in the kubelet's words
    exit_code: int | None
    ended_reason: str
    ended_message: str
    started: float | None
    ended: float | None
    disruption: str
    disruption_message: str
    is_overdue: bool  # it was ended for running longer than it may

    @property
    def is_over(self) -> bool:
        """Return whether the pod has succeeded or failed."""
        return self.phase in ("Succeeded", "Failed")


def job_state(item: Json) -> JobState:
    """Summarise a Job."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or [] if one["status"] == "True"}
    failed, ending = conditions.get("Failed"), conditions.get("FailureTarget") or conditions.get("SuccessCriteriaMet")
    pods = int(spec.get("completions") or 1)
    return JobState(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=int(metadata.get("generation") or 1),
        pods=pods,
        nodes=int(annotations.get(names.NODES) or pods),
        queue=labels.get(names.QUEUE, ""),
        is_suspended=bool(spec.get("suspend")),
        is_cancelled=names.CANCELLED in annotations,
        is_spot=labels.get(names.SPOT) == "true",
        is_deleted="deletionTimestamp" in metadata,
        created=seconds_of(metadata["creationTimestamp"]) or 0.0,
        started=seconds_of(status.get("startTime")),
        deadline_seconds=spec["template"]["spec"].get("activeDeadlineSeconds"),
        succeeded=int(status.get("succeeded") or 0),
        complete="Complete" in conditions,
        failed=_ended(failed),
        verdict=annotations.get(names.VERDICT, ""),
        ending=_ended(ending),
    )


def _ended(condition: Json | None) -> Ended | None:
    return None if condition is None else Ended(condition.get("reason") or "", condition.get("message") or "")


def pod_state(item: Json) -> PodState:
    """Summarise a pod."""
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    disruption = conditions.get("DisruptionTarget") or {}
    if disruption.get("status") != "True":
        disruption = {}
    scheduled = conditions.get("PodScheduled") or {}
    state = next((one.get("state") or {} for one in status.get("containerStatuses") or []), {})
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    running = state.get("running") or {}
    return PodState(
        name=metadata["name"],
        namespace=metadata["namespace"],
        attempt=labels.get(names.ATTEMPT, ""),
        index=int(annotations.get(names.INDEX) or labels.get(names.INDEX) or 0),
        failures=int(annotations.get(names.INDEX_FAILURES) or 0),
        node=spec.get("nodeName") or "",
        phase=status.get("phase") or "Pending",
        is_deleted="deletionTimestamp" in metadata,
        must_end_at=seconds_of(metadata.get("deletionTimestamp")),
        unschedulable=scheduled.get("message") or "" if scheduled.get("status") == "False" else "",
        placed_at=seconds_of(scheduled.get("lastTransitionTime")),
        waiting=": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))[:500],
        exit_code=ended.get("exitCode"),
        ended_reason=ended.get("reason") or status.get("reason") or "",
        ended_message=(ended.get("message") or status.get("message") or "")[:500],
        started=seconds_of(running.get("startedAt") or ended.get("startedAt")),
        ended=seconds_of(ended.get("finishedAt")),
        disruption=disruption.get("reason") or "",
        disruption_message=(disruption.get("message") or "")[:500],
        is_overdue=status.get("reason") == "DeadlineExceeded",
    )
