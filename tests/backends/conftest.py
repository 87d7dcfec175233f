"""Every kind of backend that the conformance suite runs over."""

from collections.abc import Iterator

import pytest

from tests.backends.cases.base import Case
from tests.backends.cases.fake import fake
from tests.backends.cases.kubernetes import kubernetes
from tests.backends.cases.local import local
from tests.backends.cases.slurm import slurm_commands
from tests.slurm.fixtures import slurm, slurm_session

__all__ = ["case", "fake", "kubernetes", "local", "slurm", "slurm_commands", "slurm_session"]
KINDS = ["fake", "local", "slurm_commands", "kubernetes"]


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found: Case = request.getfixturevalue(request.param)
    yield found
