"""A simulated Kubernetes API server, whose pods are processes of this machine."""

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from athanor.backends.base import Handle
from athanor.backends.kubernetes import watch
from athanor.backends.kubernetes.backend import KubernetesBackend
from tests.backends.cases.base import PROGRAM, Case, Fault
from tests.kubernetes.double.cluster import Cluster, running_cluster


class KubernetesCase(Case):
    most_nodes = 2

    def __init__(self, cluster: Cluster, root: Path) -> None:
        self.signals = root / "signals"
        self.signals.mkdir()
        self.cluster = cluster
        self.use(PROGRAM)

    def use(self, program: str = PROGRAM, **changes: object) -> None:
        command = [sys.executable, "-c", program, str(self.signals)]
        chosen = {"command": command, "timeout_seconds": 1.0, "stop_grace_seconds": 2, **changes}
        self.backend = KubernetesBackend(**self.cluster.config(**chosen))

    def pod(self, handle: Handle) -> dict[str, object]:
        return self.cluster.pods_of(handle.backend_name)[0]

    def faulty(self, fault: Fault) -> AbstractContextManager[None]:
        return self.cluster.faulty(fault.value)

    def full(self) -> AbstractContextManager[None]:
        return self.cluster.full()

    def lose_node(self, handle: Handle) -> bool:
        self.cluster.lose_node(self.cluster.pods_of(handle.backend_name)[0]["spec"]["nodeName"])
        return True

    def preempt(self, handle: Handle) -> bool:
        pod = self.cluster.pods_of(handle.backend_name)[0]
        self.cluster.disrupt(
            pod, "PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"
        )
        return True

    def cancel_behind_our_back(self, handle: Handle) -> bool:
        namespace, _, name = handle.backend_id.partition("/")
        self.cluster.remove("jobs", self.cluster.store.get("jobs", namespace, name), "Background")
        return True

    def skew_clock(self, seconds: float) -> AbstractContextManager[None]:
        return self.cluster.skewed(seconds)

    def many(self, count: int) -> list[Handle]:
        submission = self.submission()
        text = json.dumps(submission.payload["objects"][0])  # type: ignore[index]
        handles, jobs = [], []
        for number in range(count):
            name = f"athanor-many-{number}"
            jobs.append(json.loads(text.replace(submission.backend_name, name)))
            handles.append(Handle(name, f"{jobs[-1]['metadata']['namespace']}/{name}"))
        self.cluster.insert_jobs(jobs)
        return handles

    def calls(self) -> int:
        return self.cluster.server.requests.total()


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[KubernetesCase]:
    with running_cluster(tmp_path / "cluster") as cluster:
        yield KubernetesCase(cluster, tmp_path)
        watch.stop_all()
