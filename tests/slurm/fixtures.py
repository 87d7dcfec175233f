"""One Slurm cluster for all tests of a session; a conftest imports `slurm_session` and `slurm`."""

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import SlurmCluster, missing, slurm_cluster


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmCluster]:
    why = missing()
    if why:
        pytest.skip(why)
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_session: SlurmCluster) -> Iterator[SlurmCluster]:
    """The session's cluster, whole and without jobs before and after."""
    yield slurm_session
    slurm_session.clear()
