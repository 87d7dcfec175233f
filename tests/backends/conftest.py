"""Every kind of backend that the conformance suite runs over."""

import os
from collections.abc import Iterator

import pytest

from athanor.backends.registry import backend_class
from tests.backends.cases.base import Case
from tests.backends.cases.fake import fake
from tests.backends.cases.kubernetes import kubernetes
from tests.backends.cases.local import local
from tests.backends.cases.real_kubernetes import KUBECONFIG, real_kubernetes
from tests.backends.cases.slurm import slurm_commands, slurm_rest, slurm_rest_address, slurm_ssh, ssh_server
from tests.slurm.fixtures import slurm, slurm_session

__all__ = [
    "case", "fake", "kubernetes", "local", "real_kubernetes", "slurm", "slurm_commands", "slurm_rest",
    "slurm_rest_address", "slurm_session", "slurm_ssh", "ssh_server",
]  # fmt: skip
# The fixture of each case, and the kind in the registry that it runs. The scripted kind `fake` is a part of
# `fake_cluster`.
CASES = {
    "fake": "fake_cluster", "local": "local", "slurm_commands": "slurm", "slurm_rest": "slurm",
    "kubernetes": "kubernetes",
}  # fmt: skip
# The same commands over another connection: in `make slurm`; what differs is in tests/slurm/test_ssh.py.
if os.environ.get("ATHANOR_TEST_SLURM") == "all":
    CASES["slurm_ssh"] = "slurm"
if os.environ.get(KUBECONFIG):
    CASES["real_kubernetes"] = "kubernetes"


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found: Case = request.getfixturevalue(request.param)
    assert isinstance(found.backend, backend_class(CASES[request.param])), f"{request.param} runs another kind"
    yield found
