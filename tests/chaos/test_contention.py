"""Processes at once over admission, quotas and budgets: nothing is found, and a planted fault is."""

from collections.abc import Iterator

import pytest

from tests.chaos.contention import Crew, play

SEEDS = range(1, 7)


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(processes=8)
    yield made
    made.end()


def test_no_admission_goes_above_what_there_is_at_any_instant(crew: Crew) -> None:
    found = play(crew, SEEDS, seconds=1.5, killed=1)
    assert found.problems == []
    assert found.admitted > 0
    assert found.finished > 0


def test_admission_that_forgets_what_it_has_just_admitted_is_found(crew: Crew) -> None:
    crew.plant()
    problems: list[str] = []
    for seed in range(1, 30):
        problems += crew.scene(seed, seconds=1.5, killed=0).problems
        if problems:
            return
    pytest.fail("nobody noticed what was admitted twice over")
