"""The short version of `make chaos`, and the same with a backend that is broken on purpose."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from deploy.local.handle import StackHandle
from tests.chaos.run import Plan, Run
from tests.chaos.world import Plants

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
SHORT = Plan(
    seed=1,
    jobs=16,
    slots=8,
    tick_seconds=0.4,
    fewest_steps=2,
    most_steps=5,
    latest_twist_seconds=5.0,
    outages_for_seconds=24.0,
    submit_for_seconds=12.0,
    down_seconds=(0.0,),
    gap_seconds=1.0,
    drain_seconds=150.0,
)
QUIET = replace(SHORT, jobs=2, outages_for_seconds=0.0, submit_for_seconds=1.0)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackHandle]:
    running = StackHandle(tmp_path_factory.mktemp("stack") / "data")
    running.up()
    yield running
    running.down()


def test_nothing_is_lost_while_everything_dies_in_turn(stack: StackHandle) -> None:
    result = Run(stack, SHORT).execute()
    print("\n".join(result.lines()))
    assert result.findings.all() == []
    assert {recovery.service for recovery in result.recoveries}, "nothing was killed"
    assert result.faults, "the backend behaved too well"


def test_a_backend_that_starts_twice_is_found_out(stack: StackHandle) -> None:
    found = Run(stack, replace(QUIET, plants=Plants(starts_twice=True))).execute().findings
    assert len(found.started_twice) >= QUIET.jobs


def test_a_backend_that_calls_the_living_dead_is_found_out(stack: StackHandle) -> None:
    plants = Plants(says_finished_too_early=True)
    found = Run(stack, replace(QUIET, plants=plants, drain_seconds=3.0)).execute().findings
    assert found.wrong_end or found.started_twice
