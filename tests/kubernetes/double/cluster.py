"""The cluster as a test holds it: made, filled, broken, ended.

with running_cluster(folder) as cluster:
    backend = KubernetesBackend(**cluster.config())
"""

import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from deploy.local.environment import REPOSITORY
from tests.kubernetes.double.jobs import JobController
from tests.kubernetes.double.kubelet import Kubelet
from tests.kubernetes.double.logs import Logs
from tests.kubernetes.double.loop import Loop
from tests.kubernetes.double.pods import delete_pod, event, is_over, reap
from tests.kubernetes.double.policies import Policy
from tests.kubernetes.double.scheduler import Scheduler
from tests.kubernetes.double.schema import Schemas
from tests.kubernetes.double.selectors import Object
from tests.kubernetes.double.server import Server
from tests.kubernetes.double.store import KINDS, Change, Store, condition, set_condition

GROUPS = {
    "batch",
    "networking.k8s.io",
    "scheduling.k8s.io",
    "policy",
    "authorization.k8s.io",
    "rbac.authorization.k8s.io",
}
UNREACHABLE = "node.kubernetes.io/unreachable"
# A cluster waits 40 s before it calls a node lost, and as long as the pod tolerates before it gives up its pods.
LOST_AFTER = 0.2
TOLERATED_SECOND = 0.01


class Cluster:
    """`groups`: API groups besides those that every cluster has, e.g. kueue.x-k8s.io."""

    def __init__(self, folder: Path, groups: tuple[str, ...] = (), version: str = "v1.36.0") -> None:
        self.folder = folder
        self.version = version
        self.groups = GROUPS | set(groups)
        self.policies: list[Policy] = []
        self.is_secure = False
        self.keeps_namespaces = False
        self.token = secrets.token_hex(16)
        self.tokens = {self.token}
        self.forbidden: set[tuple[str, str]] = set()
        self.schemas = Schemas.found()
        self.store = Store()
        self.loop = Loop()
        self.logs = Logs()
        environment = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        environment.update(HOME=str(folder), PYTHONPATH=f"{REPOSITORY}")
        self.store.listen(lambda change: reap(self.store, change))
        self.kubelet = Kubelet(self.store, self.loop, folder / "pods", environment)
        JobController(self.store, self.loop)
        Scheduler(self.store, self.loop)
        self.store.listen(self._collect_garbage)
        for name in ("default", "kube-system"):
            self.store.create(
                "namespaces", {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}}
            )
        self.server = Server(self)
        self._serving = threading.Thread(target=self.server.serve_forever, args=(0.02,), name="api server", daemon=True)

    @property
    def url(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://127.0.0.1:{self.server.server_address[1]}"

    def start(self) -> None:
        self.loop.start()
        self._serving.start()

    def stop(self) -> None:
        self.server.is_over.set()
        self.server.shutdown()
        self.server.server_close()
        self.loop.stop()
        self.kubelet.kill_all()

    def kubeconfig(self) -> Path:
        """The path of a file for its user."""
        file = self.folder / "kubeconfig"
        content = {
            "apiVersion": "v1", "kind": "Config", "current-context": "double",
            "clusters": [{"name": "double", "cluster": {"server": self.url}}],
            "users": [{"name": "athanor", "user": {"token": self.token}}],
            "contexts": [{"name": "double", "context": {"cluster": "double", "user": "athanor"}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(content))
        file.chmod(0o600)
        return file

    def config(self, **changes: Any) -> dict[str, Any]:
        """A configuration of the Kubernetes backend, as a cluster's record keeps it: its pods run this interpreter."""
        found: dict[str, Any] = {
            "kubeconfig_file": str(self.kubeconfig()),
            "image": "athanor/trainer:test",
            "command": [sys.executable, "-m", "trainer.agent"],
        }
        return {**found, **changes}

    def add_node(self, name: str, *, cpus: int = 64, labels: dict[str, str] | None = None, **resources: int) -> Object:
        """`resources`: more that it has, by name with "/" written as "__" and "." as "_": nvidia_com__gpu=8."""
        extra = {key.replace("__", "/").replace("_", "."): str(count) for key, count in resources.items()}
        capacity = {"cpu": str(cpus), "memory": f"{cpus * 4}Gi", "pods": "5000", **extra}
        node: Object = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
            "spec": {},
            "status": {"capacity": capacity, "allocatable": dict(capacity)},
        }
        set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status", self.store.now())
        return self.store.create("nodes", node)

    def default(self, plural: str, item: Object) -> None:
        """What the server fills in."""
        if plural == "jobs":
            item["spec"].setdefault("suspend", False)
            item["spec"].setdefault("completionMode", "NonIndexed")
            item["status"] = {}
        elif plural == "namespaces":
            item["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = item["metadata"]["name"]
            item["status"] = {"phase": "Active"}
        elif plural == "pods":
            item["status"] = {"phase": "Pending"}

    def remove(self, plural: str, item: Object, policy: str) -> None:
        """Delete it, and by `policy` what it owns: Background soon after, Foreground before, Orphan not at all.

        The pods of a namespace end first; their Jobs fail before they are deleted.
        """
        if plural != "namespaces":
            self.store.remove(plural, item)
            return

        def mark(draft: Object) -> None:
            draft["metadata"].setdefault("deletionTimestamp", self.store.now())
            draft["status"] = {"phase": "Terminating"}

        self.store.change("namespaces", item, mark)
        for pod in list(self.store.all("pods", item["metadata"]["name"])):
            delete_pod(self.store, self.loop, pod)
        self.loop.later(0.1, lambda: self._empty(item))

    def _empty(self, namespace: Object) -> None:
        name = namespace["metadata"]["name"]
        jobs = list(self.store.all("jobs", name))
        are_over = all(condition(job, "Failed") or condition(job, "Complete") for job in jobs)
        if self.keeps_namespaces or not are_over or any(not is_over(pod) for pod in self.store.all("pods", name)):
            self.loop.later(0.1, lambda: self._empty(namespace))
            return
        for kind in KINDS.values():
            if kind.namespaced:
                for inner in list(self.store.all(kind.plural, name)):
                    self.store.remove(kind.plural, inner)
        self.store.remove("namespaces", namespace)

    def _collect_garbage(self, change: Change) -> None:
        if change.type != "DELETED" or change.plural in ("pods", "events"):
            return
        owner = change.item["metadata"]["uid"]
        self.loop.soon(("garbage", owner), lambda: self._remove_dependents(owner))

    def _remove_dependents(self, owner: str) -> None:
        with self.store.changed:
            for kind in KINDS.values():
                for item in list(self.store.all(kind.plural)):
                    if not any(one["uid"] == owner for one in item["metadata"].get("ownerReferences") or []):
                        continue
                    if kind.plural == "pods":
                        marked = self.store.change(
                            "pods", item, lambda draft: draft["metadata"].pop("finalizers", None)
                        )
                        if marked is not None:
                            delete_pod(self.store, self.loop, marked)
                    else:
                        self.store.remove(kind.plural, item)

    # What a test does to it.

    def pods_of(self, job_name: str) -> list[Object]:
        return [pod for pod in self.store.all("pods") if pod["metadata"]["labels"].get("job-name") == job_name]

    @contextmanager
    def full(self) -> Iterator[None]:
        """No node has room for anything more."""
        fillers = []
        for node in list(self.store.all("nodes")):
            name, everything = node["metadata"]["name"], {"requests": node["status"]["allocatable"]}
            filler = {
                "metadata": {"name": f"filler-{name}", "namespace": "kube-system", "labels": {"synthetic": "1"}},
                "spec": {
                    "nodeName": name,
                    "containers": [{"name": "filler", "image": "none", "resources": everything}],
                },
                "status": {"phase": "Running"},
            }
            fillers.append(self.store.create("pods", filler))
        try:
            yield
        finally:
            for filler in fillers:
                self.store.remove("pods", filler)

    @contextmanager
    def keeping_namespaces(self) -> Iterator[None]:
        """What is in deleted namespaces is not removed, as if a finalizer of something there held it."""
        self.keeps_namespaces = True
        try:
            yield
        finally:
            self.keeps_namespaces = False

    def lose_node(self, name: str) -> None:
        """Its machine is gone; the cluster finds out by itself."""
        self.kubelet.kill_node(name)
        self.loop.later(LOST_AFTER, lambda: self._call_lost(name))

    def _call_lost(self, name: str) -> None:
        def mark(node: Object) -> None:
            set_condition(
                node, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", self.store.now()
            )
            node["spec"]["taints"] = [{"key": UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]

        self.store.change("nodes", self.store.get("nodes", "", name), mark)
        for pod in list(self.store.all("pods")):
            if pod["spec"].get("nodeName") == name and not is_over(pod):
                waits = [
                    one.get("tolerationSeconds", 300)
                    for one in pod["spec"].get("tolerations") or []
                    if one.get("key") == UNREACHABLE
                ]
                seconds = min(waits or [300]) * TOLERATED_SECOND
                self.loop.later(
                    seconds,
                    lambda pod=pod: self.disrupt(
                        pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
                    ),
                )  # type: ignore[misc]

    def find_node(self, name: str) -> None:
        """It is back, empty."""

        def mark(node: Object) -> None:
            set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status", self.store.now())
            node["spec"]["taints"] = []

        self.store.change("nodes", self.store.get("nodes", "", name), mark)
        self.kubelet.revive_node(name)

    def disrupt(self, pod: Object, reason: str, message: str) -> None:
        """Let the cluster take a pod's place: PreemptionByScheduler, EvictionByEvictionAPI, DeletionByTaintManager,
        TerminationByKubelet."""

        def mark(draft: Object) -> None:
            set_condition(draft, "DisruptionTarget", "True", reason, message, self.store.now())

        marked = self.store.change("pods", pod, mark)
        if marked is not None:
            said = {"PreemptionByScheduler": "Preempted", "DeletionByTaintManager": "TaintManagerEviction"}.get(
                reason, "Evicted"
            )
            event(self.store, pod, "Pod", said, message)
            delete_pod(self.store, self.loop, marked)

    @contextmanager
    def faulty(self, fault: str) -> Iterator[None]:
        """While it lasts, each request meets it: lost_answer, error, timeout, slow, doubled, empty_list, stale_list."""
        if fault == "stale_list" and not self.server.stale:
            self.freeze()
        self.server.fault = fault
        try:
            yield
        finally:
            self.server.fault = ""

    def freeze(self) -> None:
        """What listings show later, while they are stale."""
        with self.store.changed:
            self.server.stale = {plural: self.store.stored(plural) for plural in KINDS}
            self.server.stale_version = self.store.version

    @contextmanager
    def skewed(self, seconds: float) -> Iterator[None]:
        self.store.clock_offset = seconds
        try:
            yield
        finally:
            self.store.clock_offset = 0.0

    def cut_watches(self) -> None:
        """All connections of watches end, as they do when an API server is restarted."""
        self.server.cut_watches_before = time.monotonic()
        with self.store.changed:
            self.store.changed.notify_all()

    def insert_jobs(self, manifests: list[Object]) -> None:
        """Add many that wait, in one step. They are stored as given."""
        for item in manifests:
            item["status"] = {"conditions": [], "startTime": self.store.now(), "active": 0}
        self.store.insert_quietly("jobs", manifests)


@contextmanager
def running_cluster(folder: Path, nodes: int = 2, **options: Any) -> Iterator[Cluster]:
    """A cluster with its API server on loopback, ended with all its pods."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(folder, **options)
    cluster.start()
    for number in range(nodes):
        rack = {"topology.kubernetes.io/zone": "zone-1", "topology.kubernetes.io/rack": f"rack-{1 + number // 2}"}
        cluster.add_node(f"node-{number + 1}", labels=rack)
    try:
        yield cluster
    finally:
        cluster.stop()
