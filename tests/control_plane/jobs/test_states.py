"""The tables of states and reasons agree with ARCHITECTURE.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.jobs.reasons import MEANINGS, Blame, Reason, Retry, explain
from athanor.jobs.states import ALLOWED, ATTEMPT_ALLOWED, FINAL, HOLDING, AttemptStatus, JobStatus


@pytest.mark.parametrize(("table", "members"), [(ALLOWED, JobStatus), (ATTEMPT_ALLOWED, AttemptStatus)])
def test_every_state_is_in_its_table(table: dict, members: type) -> None:
    assert set(table) == set(members)
    assert set().union(*table.values()) <= set(members)


@pytest.mark.parametrize("table", [ALLOWED, ATTEMPT_ALLOWED])
def test_every_state_reaches_a_final_one(table: dict) -> None:
    finals = {state for state, exits in table.items() if not exits}
    reaching = set(finals)
    while grown := {state for state, exits in table.items() if exits & reaching} - reaching:
        reaching |= grown
    assert reaching == set(table)


@given(st.lists(st.integers(min_value=0, max_value=11), max_size=40))
def test_no_walk_leaves_a_final_state(choices: list[int]) -> None:
    state = JobStatus.QUEUED
    for choice in choices:
        exits = sorted(ALLOWED[state])
        if not exits:
            assert state in FINAL
            return
        state = exits[choice % len(exits)]


def test_only_what_a_run_may_have_caused_itself_uses_up_charged_retries() -> None:
    charged = {meaning.blame for meaning in MEANINGS.values() if meaning.retry is Retry.CHARGED}
    assert charged == {Blame.USER}


def test_slots_are_held_from_admission_to_the_end() -> None:
    assert not HOLDING & FINAL
    assert JobStatus.QUEUED not in HOLDING
    assert JobStatus.ADMITTED in HOLDING


def test_every_reason_has_a_meaning_with_message_and_remedy() -> None:
    assert set(MEANINGS) == set(Reason)
    for reason, meaning in MEANINGS.items():
        assert meaning.message.endswith("."), reason
        assert meaning.remedy.endswith("."), reason
        assert meaning.final is None or meaning.final in FINAL


def test_a_reason_to_wait_is_no_reason_to_retry() -> None:
    assert all(meaning.retry is Retry.NEVER for meaning in MEANINGS.values() if meaning.final is None)


def test_explain_adds_what_is_known_to_the_message() -> None:
    shown = explain("data_error", "line 7 is not JSON.")
    assert shown is not None
    assert shown["message"] == "The data is unusable. Line 7 is not JSON."
    assert explain("") is None
