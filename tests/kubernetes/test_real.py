"""A real cluster beyond the conformance suite, where there is one; and that the suite for one works at all."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from athanor.backends.base import Handle, Presence
from athanor.backends.kubernetes import names
from athanor.backends.kubernetes.backend import KubernetesBackend
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.plan import LaunchPlan
from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until
from tests.backends.cases import real_kubernetes
from tests.backends.cases.kubernetes import KubernetesCase
from tests.kubernetes.test_objects import plan

PROGRAM = "import os; print('index', os.environ['ATHANOR_NODE_INDEX'], flush=True)"
SUITE = (
    "real_kubernetes and (two_nodes or adopts or preempted or behind or waits_it_never or "
    "health_check or cursor or lost_answer)"
)


@pytest.fixture
def config() -> Iterator[dict[str, Any]]:
    """Of a cluster whose pods keep to the level restricted."""
    if not os.environ.get(real_kubernetes.KUBECONFIG):
        pytest.skip(f"there is no real cluster: {real_kubernetes.KUBECONFIG} is not set")
    found = real_kubernetes.configuration("-c", PROGRAM, distinct_nodes=False)
    yield found
    real_kubernetes.remove_namespaces(KubernetesConfig(**found))


def test_a_job_of_two_pods_runs_under_the_level_restricted(config: dict[str, Any]) -> None:
    backend = KubernetesBackend(**config)
    of: LaunchPlan = plan(nodes=2, processes_per_node=1)
    handle = backend.submit(backend.render(of))

    def is_over() -> bool:
        return backend.observe([handle])[handle].presence is Presence.FINISHED

    wait_until(is_over, "both pods have ended", 180)
    assert backend.observe([handle])[handle].exit_status == 0
    text = backend.logs(handle).text
    assert "[0] index 0" in text
    assert "[1] index 1" in text
    assert backend.submit(backend.render(of)) == handle
    assert backend.observe([Handle("athanor-nothing")])[Handle("athanor-nothing")].presence is Presence.ABSENT
    assert names.namespace_of(KubernetesConfig(**config), "research") in handle.backend_id
    assert [finding for finding in backend.check_health().findings if finding.check == "pod security"]


@pytest.mark.slow
def test_the_suite_for_real_clusters_runs_on_one_that_is_given_by_a_file(kubernetes: KubernetesCase) -> None:
    variables = {
        real_kubernetes.KUBECONFIG: str(kubernetes.cluster.kubeconfig()),
        real_kubernetes.COMMAND: f'["{sys.executable}"]',
        "PYTHONPATH": f"{REPOSITORY / 'platform'}{os.pathsep}{REPOSITORY}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/backends", "-k", SUITE],
        cwd=REPOSITORY, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 passed" in done.stdout
    left = [one["metadata"]["name"] for one in kubernetes.cluster.store.all("namespaces")]
    assert not [name for name in left if name.startswith("athanor-t-")]
