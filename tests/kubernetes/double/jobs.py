"""The Job controller, for Indexed Jobs: what it counts, what it gives up, what it replaces."""

import contextlib
import time
from typing import Any

from tests.kubernetes.double.admission import admit_pod
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.loop import Loop
from tests.kubernetes.double.pods import delete_pod, event, is_over, pod_of
from tests.kubernetes.double.selectors import Object
from tests.kubernetes.double.store import Change, Store, condition, owner_of, set_condition
from tests.kubernetes.double.times import seconds_of

FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
# A cluster waits 10 s before it replaces a pod of an index for the first time, and each time twice as long.
BACKOFF_SECONDS = 0.2


class JobController:
    def __init__(self, store: Store, loop: Loop) -> None:
        self._store = store
        self._loop = loop
        self._pods: dict[str, set[tuple[str, str]]] = {}
        self._failed_at: dict[str, float] = {}
        store.listen(self._hear)

    def _hear(self, change: Change) -> None:
        metadata = change.item["metadata"]
        if change.plural == "jobs" and change.type != "DELETED":
            self._wish(metadata["namespace"], metadata["name"])
        elif change.plural == "pods" and (owner := owner_of(change.item)):
            pods = self._pods.setdefault(owner, set())
            key = (metadata["namespace"], metadata["name"])
            pods.discard(key) if change.type == "DELETED" else pods.add(key)
            self._wish(metadata["namespace"], metadata["ownerReferences"][0]["name"])

    def _wish(self, namespace: str, name: str) -> None:
        self._loop.soon(("job", namespace, name), lambda: self._sync(namespace, name))

    def _sync(self, namespace: str, name: str) -> None:
        with self._store.changed:
            job = self._store.find("jobs", namespace, name)
            if job is not None and "deletionTimestamp" not in job["metadata"]:
                self._store.change("jobs", job, self._decide)

    def _decide(self, job: Object) -> None:
        """Edits the Job's status, and makes or ends pods."""
        spec, status, now = job["spec"], job.setdefault("status", {}), self._store.now()
        pods = self._pods_of(job)
        if condition(job, "Complete") or condition(job, "Failed"):
            self._release(pods)
            self._retire(job)
            return
        if spec.get("suspend"):
            self._suspend(job, pods)
            return
        if condition(job, "Suspended"):
            set_condition(job, "Suspended", "False", "JobResumed", "Job resumed", now)
        if not status.get("startTime"):
            status["startTime"] = now
            if deadline := spec.get("activeDeadlineSeconds"):
                self._loop.later(
                    deadline + 1, lambda: self._wish(job["metadata"]["namespace"], job["metadata"]["name"])
                )
        verdict = self._failure(job, pods)
        self._count(job, pods)
        verdict = verdict or self._limits(job)
        if verdict and not condition(job, "FailureTarget"):
            set_condition(job, "FailureTarget", "True", *verdict, now)
        pods = self._pods_of(job)
        if target := condition(job, "FailureTarget"):
            for pod in pods:
                if not is_over(pod) and "deletionTimestamp" not in pod["metadata"]:
                    delete_pod(self._store, self._loop, pod)
            self._release(self._pods_of(job))
            left = [pod for pod in self._pods_of(job) if not is_over(pod)]
            self._tell(job, left)
            if not left:
                set_condition(job, "Failed", "True", target["reason"], target["message"], now)
            return
        done = indexes(status.get("completedIndexes", ""))
        if len(done) >= spec["completions"]:
            reason = ("CompletionsReached", "Reached expected number of succeeded pods")
            set_condition(job, "SuccessCriteriaMet", "True", *reason, now)
            set_condition(job, "Complete", "True", *reason, now)
            status["completionTime"] = now
        else:
            self._create_missing(job, pods, done)
        self._tell(job, [pod for pod in self._pods_of(job) if not is_over(pod)])

    def _pods_of(self, job: Object) -> list[Object]:
        found = [self._store.find("pods", *key) for key in sorted(self._pods.get(job["metadata"]["uid"], ()))]
        return [pod for pod in found if pod is not None]

    def _tell(self, job: Object, pods: list[Object]) -> None:
        terminating = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        job["status"].update(
            active=len(pods) - len(terminating),
            terminating=len(terminating),
            ready=sum(1 for pod in pods if condition(pod, "Ready")),
            uncountedTerminatedPods={},
        )

    def _suspend(self, job: Object, pods: list[Object]) -> None:
        for pod in pods:
            if not is_over(pod):
                delete_pod(self._store, self._loop, pod)
        self._release(self._pods_of(job))
        job["status"].pop("startTime", None)
        set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended", self._store.now())
        self._tell(job, [pod for pod in self._pods_of(job) if not is_over(pod)])

    def _count(self, job: Object, pods: list[Object]) -> None:
        """Each pod once: what was counted loses the finalizer."""
        status, spec = job["status"], job["spec"]
        done, lost = indexes(status.get("completedIndexes", "")), indexes(status.get("failedIndexes", ""))
        early = spec.get("podReplacementPolicy", "TerminatingOrFailed") != "Failed" and "podFailurePolicy" not in spec
        counted = []
        for pod in pods:
            if FINALIZER not in pod["metadata"].get("finalizers", []):
                continue
            index = int(pod["metadata"]["annotations"][INDEX])
            phase = pod["status"]["phase"]
            if phase == "Succeeded":
                done.add(index)
                status["succeeded"] = status.get("succeeded", 0) + 1
            elif phase == "Failed" or (early and "deletionTimestamp" in pod["metadata"]):
                limit = spec.get("backoffLimitPerIndex")
                if limit is not None and (failures_of(pod) >= limit or self._action(job, pod) == "FailIndex"):
                    lost.add(index)
                elif limit is not None and not is_replaced(pod, pods):
                    continue  # until then it alone has the number of the index's failures
                status["failed"] = status.get("failed", 0) + 1
            else:
                continue
            counted.append(pod)
        self._release(counted)
        status["completedIndexes"] = written(done)
        if "backoffLimitPerIndex" in spec:
            status["failedIndexes"] = written(lost - done)

    def _failure(self, job: Object, pods: list[Object]) -> tuple[str, str] | None:
        """What the pod failure policy says, before the pods are counted."""
        for pod in pods:
            if pod["status"]["phase"] == "Failed" and FINALIZER in pod["metadata"].get("finalizers", []):
                rule = matching_rule(job, pod)
                if rule is not None and rule[1]["action"] == "FailJob":
                    number, found = rule
                    what = (
                        "has condition DisruptionTarget" if "onPodConditions" in found else "failed with its exit code"
                    )
                    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                    return "PodFailurePolicy", f"Pod {name} {what} matching FailJob rule at index {number}"
        return None

    def _action(self, job: Object, pod: Object) -> str:
        rule = matching_rule(job, pod)
        return str(rule[1]["action"]) if rule else "Count"

    def _limits(self, job: Object) -> tuple[str, str] | None:
        spec, status = job["spec"], job["status"]
        done, lost = indexes(status.get("completedIndexes", "")), indexes(status.get("failedIndexes", ""))
        if "backoffLimitPerIndex" not in spec and status.get("failed", 0) > spec.get("backoffLimit", 6):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if "maxFailedIndexes" in spec and len(lost) > spec["maxFailedIndexes"]:
            return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
        if lost and len(done | lost) >= spec["completions"]:
            return "FailedIndexes", "Job has failed indexes"
        deadline = spec.get("activeDeadlineSeconds")
        if deadline is not None and self._store.seconds() - seconds_of(status["startTime"]) >= deadline:
            return "DeadlineExceeded", "Job was active longer than specified deadline"
        if deadline is not None:
            metadata = job["metadata"]
            left = deadline - (self._store.seconds() - seconds_of(status["startTime"]))
            if left < 5:
                self._loop.later(max(left, 0.05), lambda: self._wish(metadata["namespace"], metadata["name"]))
        return None

    def _create_missing(self, job: Object, pods: list[Object], done: set[int]) -> None:
        spec, metadata = job["spec"], job["metadata"]
        lost = indexes(job["status"].get("failedIndexes", ""))
        alive = [pod for pod in pods if not is_over(pod)]
        taken = {int(pod["metadata"]["annotations"][INDEX]) for pod in alive}
        room = spec["parallelism"] - len(alive)
        failures: dict[int, int] = {}
        failed_at: dict[int, float] = {}
        for pod in pods:
            if pod["status"]["phase"] == "Failed":
                index = int(pod["metadata"]["annotations"][INDEX])
                failures[index] = max(failures.get(index, 0), failures_of(pod) + 1)
                failed_at[index] = self._failed_at.setdefault(pod["metadata"]["uid"], time.monotonic())
        for index in range(spec["completions"]):
            if room <= 0:
                return
            if index in done or index in lost or index in taken:
                continue
            if index in failures:
                pause = failed_at[index] + BACKOFF_SECONDS * 2 ** (failures[index] - 1) - time.monotonic()
                if pause > 0:
                    self._loop.later(pause, lambda: self._wish(metadata["namespace"], metadata["name"]))
                    continue
            try:
                draft = pod_of(job, index, failures.get(index, 0))
                admit_pod(self._store, draft)
                self._store.create("pods", draft)
            except ApiError as error:
                event(self._store, job, "Job", "FailedCreate", f"Error creating: {error.message}")
                self._loop.later(0.3, lambda: self._wish(metadata["namespace"], metadata["name"]))
                return
            room -= 1

    def _release(self, pods: list[Object]) -> None:
        for pod in pods:
            if FINALIZER in pod["metadata"].get("finalizers", []):
                self._store.change("pods", pod, drop_finalizer)

    def _retire(self, job: Object) -> None:
        keep = job["spec"].get("ttlSecondsAfterFinished")
        if keep is not None:
            end = condition(job, "Complete") or condition(job, "Failed")
            assert end is not None
            left = keep - (self._store.seconds() - seconds_of(end["lastTransitionTime"]))
            if left <= 0:
                self._loop.soon(("ttl", job["metadata"]["uid"]), lambda: self._store.remove("jobs", job))
            else:
                metadata = job["metadata"]
                self._loop.later(left + 0.1, lambda: self._wish(metadata["namespace"], metadata["name"]))


def failures_of(pod: Object) -> int:
    """How often pods of its index had failed before it was made."""
    return int(pod["metadata"]["annotations"].get(FAILURES, 0))


def is_replaced(pod: Object, pods: list[Object]) -> bool:
    index = pod["metadata"]["annotations"][INDEX]
    return any(
        other["metadata"]["annotations"][INDEX] == index and failures_of(other) > failures_of(pod) for other in pods
    )


def matching_rule(job: Object, pod: Object) -> tuple[int, Object] | None:
    for number, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules", [])):
        for wanted in rule.get("onPodConditions") or []:
            if wanted.get("status", "True") == "True" and condition(pod, wanted["type"]):
                return number, rule
        if codes := rule.get("onExitCodes"):
            for one in pod["status"].get("containerStatuses") or []:
                ended: dict[str, Any] = one["state"].get("terminated") or {}
                code = ended.get("exitCode", 0)
                if code != 0 and (code in codes["values"]) == (codes["operator"] == "In"):
                    return number, rule
    return None


def drop_finalizer(pod: Object) -> None:
    with contextlib.suppress(ValueError):
        pod["metadata"]["finalizers"].remove(FINALIZER)


def indexes(text: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def written(found: set[int]) -> str:
    parts: list[list[int]] = []
    for index in sorted(found):
        if parts and parts[-1][-1] == index - 1:
            parts[-1][1:] = [index]
        else:
            parts.append([index])
    return ",".join("-".join(map(str, part)) for part in parts)
