"""One Slurm cluster for all tests of a session; a conftest imports `slurm_session` and `slurm`."""

import os
from collections.abc import Iterator

import pytest

from tests.slurm import accounting
from tests.slurm.cluster import SlurmCluster, missing, slurm_cluster


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmCluster]:
    # `make slurm` runs everything once more on a cluster with accounting.
    keeps_accounts = os.environ.get("ATHANOR_TEST_SLURM") == "accounting"
    why = missing() or (accounting.missing() if keeps_accounts else "")
    if why:
        pytest.skip(why)
    with slurm_cluster(with_accounting=keeps_accounts) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster, whole and without jobs before and after."""
    yield slurm_session
    slurm_session.clear()
