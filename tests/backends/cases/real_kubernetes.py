"""A real Kubernetes cluster, where ATHANOR_TEST_KUBECONFIG names one. docs/operations/kubernetes.md says how to run it.

Its nodes must see the folder of signals by the same path (they are this machine, or share it): pods mount it from their
host. Everything is made in namespaces of a prefix of its own and removed at the end.
"""

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from athanor.backends.base import Handle
from athanor.backends.facts import NodeState
from athanor.backends.kubernetes import watch
from athanor.backends.kubernetes.backend import KubernetesBackend
from athanor.backends.kubernetes.client import KubernetesClient, path
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.names import ours
from tests.backends.cases.base import PROGRAM, Case, Fault
from tests.kubernetes.proxy import Proxy

KUBECONFIG = "ATHANOR_TEST_KUBECONFIG"
IMAGE = "ATHANOR_TEST_KUBERNETES_IMAGE"
PULL_POLICY = "ATHANOR_TEST_KUBERNETES_PULL_POLICY"
COMMAND = "ATHANOR_TEST_KUBERNETES_COMMAND"  # JSON: what runs Python in that image
SIGNALS = "ATHANOR_TEST_KUBERNETES_SIGNALS"  # a folder that this machine and the nodes share
CONFIG = "ATHANOR_TEST_KUBERNETES_CONFIG"  # JSON: more of the backend's configuration; it wins
DEFAULT_IMAGE = "python:3.11-slim"


def configuration(*arguments: str, **changes: Any) -> dict[str, Any]:
    """A configuration for the cluster of the environment; `arguments` are Python's."""
    found: dict[str, Any] = {
        "kubeconfig_file": str(Path(os.environ[KUBECONFIG]).resolve()),
        "namespace_prefix": f"athanor-t-{uuid.uuid4().hex[:8]}",
        "image": os.environ.get(IMAGE) or DEFAULT_IMAGE,
        "image_pull_policy": os.environ.get(PULL_POLICY) or "IfNotPresent",
        "command": [*json.loads(os.environ.get(COMMAND) or '["python3"]'), *arguments],
        "cpus_per_process": 0.05,
        "shared_memory_bytes": 2**24,
        "stop_grace_seconds": 5,
        "lost_node_seconds": 5,
    }
    return {**found, **changes, **json.loads(os.environ.get(CONFIG) or "{}")}


class RealKubernetesCase(Case):
    most_nodes = 2

    def __init__(self, root: Path) -> None:
        self.signals = root
        shared = {"security": {"level": "privileged", "run_as_user": os.getuid(), "run_as_group": os.getgid()}}
        mounted = {"cache": {"host_path": str(root)}, "profile": {"cache_directory": str(root)}}
        self.config = configuration("-c", PROGRAM, str(root), **shared, **mounted)
        self.client = KubernetesClient(KubernetesConfig(**self.config))
        self.proxy = Proxy(KubernetesConfig(**self.config))
        self.config.update(kubeconfig_file=str(self.proxy.kubeconfig(root)), context=None, timeout_seconds=3.0)
        self.backend = KubernetesBackend(**self.config)
        ready = [node for node in self.backend.nodes() if node.state is NodeState.READY]
        if len(ready) < 2:
            self.config["distinct_nodes"] = False
            self.backend = KubernetesBackend(**self.config)

    def faulty(self, fault: Fault) -> AbstractContextManager[None]:
        return self.proxy.faulty(fault.value)

    def calls(self) -> int:
        return self.proxy.requests.total()

    @contextmanager
    def full(self) -> Iterator[None]:
        assert isinstance(self.backend, KubernetesBackend)
        ready = [node.name for node in self.backend.nodes() if node.state is NodeState.READY]
        for name in ready:
            self.backend.drain(name, "a test fills the cluster")
        try:
            yield
        finally:
            for name in ready:
                self.backend.undrain(name)

    def preempt(self, handle: Handle) -> bool:
        namespace, _, name = handle.backend_id.partition("/")
        pods = self.client.json("GET", path("v1", "pods", namespace), labelSelector=f"job-name={name}")["items"]
        metadata = {"name": pods[0]["metadata"]["name"], "namespace": namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        self.client.request("POST", path("v1", "pods", namespace, metadata["name"], "eviction"), body=body)
        return True

    def cancel_behind_our_back(self, handle: Handle) -> bool:
        namespace, _, name = handle.backend_id.partition("/")
        where = path("batch/v1", "jobs", namespace, name)
        self.client.request("DELETE", where, body={"propagationPolicy": "Background"})
        return True

    def remove_everything(self) -> None:
        remove_namespaces(KubernetesConfig(**self.config))
        self.proxy.stop()


def remove_namespaces(config: KubernetesConfig) -> None:
    """Those of this configuration, with all that is in them. Needs more rights than the platform has."""
    client = KubernetesClient(config)
    for item in client.json("GET", path("v1", "namespaces"), labelSelector=ours(config))["items"]:
        client.request("DELETE", path("v1", "namespaces", "", item["metadata"]["name"]))


@pytest.fixture
def real_kubernetes() -> Iterator[RealKubernetesCase]:
    root = Path(tempfile.mkdtemp(prefix="athanor-signals-", dir=os.environ.get(SIGNALS)))
    root.chmod(0o777)
    case = RealKubernetesCase(root)
    yield case
    (root / "finish").write_text("0")
    watch.stop_all()
    case.remove_everything()
    shutil.rmtree(root, ignore_errors=True)
