"""Pods as objects: made from a Job's template, deleted with grace, what was said about them."""

import copy
import uuid

from tests.kubernetes.double.loop import Loop
from tests.kubernetes.double.selectors import Object
from tests.kubernetes.double.store import Change, Store

INDEX = "batch.kubernetes.io/job-completion-index"


def is_over(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def pod_of(job: Object, index: int, failures: int) -> Object:
    metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    labels = dict(template["metadata"].get("labels") or {})
    labels.update({"batch.kubernetes.io/job-name": metadata["name"], "job-name": metadata["name"], INDEX: str(index)})
    labels["batch.kubernetes.io/controller-uid"] = metadata["uid"]
    annotations = {**(template["metadata"].get("annotations") or {}), INDEX: str(index)}
    if "backoffLimitPerIndex" in job["spec"]:
        annotations["batch.kubernetes.io/job-index-failure-count"] = str(failures)
    spec = template["spec"]
    spec.setdefault("hostname", f"{metadata['name']}-{index}")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{index}-{uuid.uuid4().hex[:5]}",
            "namespace": metadata["namespace"],
            "labels": labels,
            "annotations": annotations,
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": spec,
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def delete_pod(store: Store, loop: Loop, pod: Object, grace: int | None = None) -> None:
    """Ask for its end. What no node has, and what is forced, needs no kubelet's word."""
    wanted = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
    if not pod["spec"].get("nodeName") or is_over(pod):
        wanted = 0

    def mark(draft: Object) -> None:
        metadata = draft["metadata"]
        if "deletionTimestamp" not in metadata or wanted < metadata["deletionGracePeriodSeconds"]:
            metadata["deletionTimestamp"] = _after(store, wanted)
            metadata["deletionGracePeriodSeconds"] = wanted

    marked = store.change("pods", pod, mark)
    if marked is not None and not pod["spec"].get("nodeName"):
        loop.later(0.2, lambda: _collect_unscheduled(store, marked))


def _collect_unscheduled(store: Store, pod: Object) -> None:
    """The pod garbage collector's part: what ends before any node had it has failed."""

    def fail(draft: Object) -> None:
        draft["status"]["phase"] = "Failed"

    store.change("pods", pod, fail)


def _after(store: Store, seconds: float) -> str:
    offset, store.clock_offset = store.clock_offset, store.clock_offset + seconds
    try:
        return store.now()
    finally:
        store.clock_offset = offset


def reap(store: Store, change: Change) -> None:
    """What is to be deleted, ended, and held by no finalizer any more, goes."""
    if change.plural != "pods" or change.type == "DELETED":
        return
    metadata = change.item["metadata"]
    if (
        "deletionTimestamp" in metadata
        and metadata["deletionGracePeriodSeconds"] == 0
        and not metadata.get("finalizers")
    ):
        store.remove("pods", change.item)


def event(store: Store, item: Object, kind: str, reason: str, message: str, type_: str = "Warning") -> None:
    metadata, now = item["metadata"], store.now()
    namespace = metadata.get("namespace", "default")
    for one in store.all("events", namespace):
        if one["involvedObject"]["uid"] == metadata["uid"] and one["reason"] == reason and one["message"] == message:
            return  # the real one counts it
    store.create(
        "events",
        {
            "metadata": {"name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}", "namespace": namespace},
            "involvedObject": {
                "kind": kind, "name": metadata["name"], "namespace": metadata.get("namespace", ""),
                "uid": metadata["uid"],
            },
            "reason": reason, "message": message, "type": type_, "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": {"component": "double"},
        },
    )  # fmt: skip
