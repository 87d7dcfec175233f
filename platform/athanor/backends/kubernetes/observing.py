"""One observation for each handle, with as few requests as possible.

The watch answers while it is connected. What it does not know is requested by name, and only the server's own "not
found" is an absence: an empty or late listing is not.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from athanor.backends.base import BackendUnavailable, Cause, Handle, Observation, Obstacle, Presence
from athanor.backends.kubernetes import names, replacements, status
from athanor.backends.kubernetes.client import KubernetesClient, Refused, path
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.reading import BATCH, Reading
from athanor.backends.kubernetes.state import JobState, PodState, job_state, pod_state
from athanor.backends.kubernetes.watch import Watch, watch_of

MAX_SINGLE_READS = 20  # are asked for one by one, when there is no watch
MAX_CONFIRMED_PER_CALL = 100  # absences in one call
MAX_EVENT_NAMESPACES_PER_CALL = 5  # namespaces whose events are read in one call
SYNC_SECONDS = 10.0  # for a watch to begin, where the alternative is to list everything
SECONDS_FOR_PODS = 3.0  # a Job that has none after so long may have an event that says why
Json = dict[str, Any]
DISRUPTIONS = {"Preempted": "PreemptionByScheduler", "TaintManagerEviction": "DeletionByTaintManager"}
VERDICTS = 5000

_ENDED: OrderedDict[tuple[str, str], Observation] = OrderedDict()
_LOCK = threading.Lock()


class Sweep:
    """The observation of some handles in one call."""

    def __init__(self, config: KubernetesConfig, key: str, client: KubernetesClient) -> None:
        self._key = key
        self._client = client
        self._room_seconds = config.room_seconds
        self._reading = Reading(config, client)
        self._watch: Watch | None = watch_of(key, config) if config.watch else None
        self._jobs: dict[str, JobState] = {}
        self._pods: dict[str, list[PodState]] = {}
        self._events: dict[tuple[str, str], list[Json]] = {}

    def answers(self, handles: Sequence[Handle]) -> dict[Handle, Observation]:
        """Return the observation of each handle."""
        heard = self._watch is not None and self._watch.wait(SYNC_SECONDS if len(handles) > MAX_SINGLE_READS else 0)
        if not heard and len(handles) > MAX_SINGLE_READS:
            self._list()
        answers: dict[Handle, Observation] = {}
        missing: list[Handle] = []
        for handle in handles:
            name = handle.backend_name
            if self._watch is not None and heard and (job := self._watch.job(name)) is not None:
                self._jobs[name], self._pods[name] = job, self._watch.pods_of(name)
            elif name not in self._jobs:
                missing.append(handle)
        for handle in missing[:MAX_CONFIRMED_PER_CALL]:
            self._ask(handle, answers)
        for handle in missing[MAX_CONFIRMED_PER_CALL:]:
            answers[handle] = Observation(
                Presence.UNKNOWN, native_reason="it was in no listing; asked for by name later"
            )
        now = self._client.server_now()
        doubtful = {
            node for name, job in self._jobs.items() for node in status.may_be_lost(job, self._pods.get(name, ()), now)
        }
        lost = self._reading.lost(doubtful)
        for handle in handles:
            if handle not in answers:
                answers[handle] = self._judge(handle.backend_name, lost, now)
        return answers

    def _list(self) -> None:
        for item in self._reading.all(BATCH, "jobs"):
            self._jobs[item["metadata"]["name"]] = job_state(item)
        for item in self._reading.all("v1", "pods"):
            pod = pod_state(item)
            self._pods.setdefault(pod.attempt, []).append(pod)

    def _ask(self, handle: Handle, answers: dict[Handle, Observation]) -> None:
        """Ask the server for one handle by name."""
        item = self._reading.job(handle)
        if item is not None:
            job = job_state(item)
            self._jobs[job.name], self._pods[job.name] = job, self._reading.pods(job.namespace, job.name)
            return
        gone = self._watch.deleted_job(handle.backend_name) if self._watch is not None else None
        if gone is None:
            answers[handle] = Observation(Presence.ABSENT)
        elif self._reading.pods(gone.namespace, gone.name):
            answers[handle] = Observation(Presence.UNKNOWN, "Deleted", "its pods are being ended")
        else:
            said = "It was cancelled." if gone.is_cancelled else self._deletion(gone) or "Somebody deleted the Job."
            answers[handle] = Observation(Presence.FINISHED, "Deleted", cause=Cause.CANCELLED, explanation=said)

    def _judge(self, name: str, lost: set[str], now: float) -> Observation:
        job, pods = self._jobs[name], self._pods.get(name, [])
        if not job.verdict and replacements.is_at_its_end(job, pods, lost):
            try:
                job, pods = self._end(job, lost)
            except (Refused, BackendUnavailable) as error:
                return Observation(Presence.UNKNOWN, native_reason=f"its Job is ended later: {error}"[:500])
        if not job.is_over:
            seen = status.observation(job, pods, lost, now, self._room_seconds)
            waits_long = not pods and not job.is_suspended and now - job.created > SECONDS_FOR_PODS
            return self._why_none(job, seen, now) if waits_long else seen
        with _LOCK:
            known = _ENDED.get((self._key, job.uid))
        if known is not None:
            return known
        if job.failed is not None:
            pods = self._final_pods(job)
        verdict = status.observation(job, pods, lost, now, self._room_seconds)
        if verdict.cause is Cause.DELETED and (said := self._deletion(job)):
            verdict = replace(verdict, cause=Cause.CANCELLED, explanation=said)
        with _LOCK:
            _ENDED[(self._key, job.uid)] = verdict
            while len(_ENDED) > VERDICTS:
                _ENDED.popitem(last=False)
        return verdict

    def _deletion(self, job: JobState) -> str:
        """Return that somebody has deleted the namespace, in words; empty if nobody has, or it is not known."""
        try:
            is_deleted = self._reading.is_namespace_deleted(job.namespace)
        except Refused:  # an account from before this right
            is_deleted = False
        return f"Somebody deleted the namespace {job.namespace}." if is_deleted else ""

    def _end(self, seen: JobState, lost: set[str]) -> tuple[JobState, list[PodState]]:
        """End the Job of a run that can only end, and write how it ended: what waits to replace a pod is not needed.

        The watch may be behind the server: return the Job and its pods as they are there now.
        """
        where = path(BATCH, "jobs", seen.namespace, seen.name)
        job = job_state(self._client.json("GET", where, deadline=self._reading.deadline))
        pods = self._reading.pods(job.namespace, job.name)
        if job.verdict or not replacements.is_at_its_end(job, pods, lost):
            return job, pods
        verdict = replacements.write(status.verdict(job, self._final_pods(job), lost))
        patch = {"metadata": {"annotations": {names.VERDICT: verdict}}, "spec": {"activeDeadlineSeconds": 1}}
        return job_state(self._client.merge(where, patch, deadline=self._reading.deadline)), pods

    def _final_pods(self, job: JobState) -> list[PodState]:
        """Return the attempt's pods, including deleted ones that are still known: a disruption deletes its pod."""
        pods = {pod.name: pod for pod in (self._watch.deleted_pods(job.name) if self._watch is not None else [])}
        pods.update((pod.name, pod) for pod in self._reading.pods(job.namespace, job.name))
        is_explained = any(
            pod.phase == "Failed" and (pod.disruption or pod.exit_code is not None) for pod in pods.values()
        )
        if not is_explained and (job.failed is None or job.failed.reason == "PodFailurePolicy"):
            for event in self._read_events(job, "Pod", f"{job.name}-"):
                if (reason := DISRUPTIONS.get(event["reason"])) is not None:
                    name = event["involvedObject"]["name"]
                    pods[name] = gone_pod(job, name, reason, event.get("message") or "")
        return list(pods.values())

    def _why_none(self, job: JobState, seen: Observation, now: float) -> Observation:
        """Add why the Job has no pods: a refusal (a quota, a policy) is only in its events."""
        waits_long = now - job.created > self._room_seconds
        for event in reversed(self._read_events(job, "Job", job.name)):
            if event["reason"] == "FailedCreate":
                said = str(event["message"])[:500]
                obstacle = Obstacle.NO_ROOM if "exceeded quota" in said else Obstacle.CANNOT_START
                gives_up = obstacle if waits_long else None
                return replace(seen, native_reason=said, explanation=said, gives_up=gives_up)
        return seen

    def _read_events(self, job: JobState, kind: str, name: str) -> list[Json]:
        """Return the events of objects of `kind` with this name prefix, newest last: one request per namespace."""
        place = (job.namespace, kind)
        if place not in self._events:
            if len(self._events) >= MAX_EVENT_NAMESPACES_PER_CALL:
                return []
            try:
                self._events[place] = self._reading.events(*place)
            except Refused:
                self._events[place] = []  # rights to events are needed for nothing else
        return [one for one in self._events[place] if str(one["involvedObject"].get("name", "")).startswith(name)]


def gone_pod(job: JobState, name: str, reason: str, message: str) -> PodState:
    """Return what an event says about a pod that no longer exists."""
    return PodState(
        name=name, namespace=job.namespace, attempt=job.name, index=0, failures=0, node="", phase="Failed",
        is_deleted=True, must_end_at=None, unschedulable="", placed_at=None, waiting="", exit_code=None,
        ended_reason="", ended_message="", started=None, ended=None, disruption=reason, disruption_message=message,
        is_overdue=False,
    )  # fmt: skip
