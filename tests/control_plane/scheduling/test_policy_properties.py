"""Properties of admission over random trees and histories; `make chaos` runs a thousand seeds of each.

ATHANOR_TEST_EXAMPLES: how many histories of each property are tried here.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.control_plane.scheduling.histories import Draw
from tests.control_plane.scheduling.properties import PROPERTIES

EXAMPLES = int(os.environ.get("ATHANOR_TEST_EXAMPLES", "60"))


@pytest.mark.parametrize("name", PROPERTIES)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(draw=st.randoms(use_true_random=False))
def test_always(name: str, draw: Draw) -> None:
    PROPERTIES[name](draw)
