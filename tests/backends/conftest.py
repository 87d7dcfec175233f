"""Every kind of backend that the conformance suite runs over."""

from collections.abc import Iterator

import pytest

from tests.backends.cases.base import Case
from tests.backends.cases.fake import fake
from tests.backends.cases.local import local

__all__ = ["case", "fake", "local"]
KINDS = ["fake", "local"]


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    found: Case = request.getfixturevalue(request.param)
    yield found
