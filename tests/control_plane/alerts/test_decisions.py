"""The state of an alert: by example, and by property over any sequence of values."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.alerts.decisions import AlertState, Condition, next_state

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
P, F, R = AlertState.PENDING, AlertState.FIRING, AlertState.RESOLVED
ABOVE = Condition(fires_above=True, threshold=80, clear=70, hold=timedelta(minutes=5))
BELOW = Condition(fires_above=False, threshold=0.28, clear=0.3, hold=timedelta(minutes=5))


@pytest.mark.parametrize(
    ("condition", "state", "minutes", "value", "expected"),
    [
        (ABOVE, None, 0, 79.9, None),
        (ABOVE, None, 0, 80, P),
        (ABOVE, P, 4, 99, P),
        (ABOVE, P, 5, 80, F),
        (ABOVE, P, 9, 79, None),
        (ABOVE, F, 9, 75, F),
        (ABOVE, F, 9, 70, F),
        (ABOVE, F, 9, 69.9, R),
        (ABOVE, F, 9, None, F),
        (ABOVE, P, 9, None, P),
        (ABOVE, None, 0, None, None),
        (BELOW, None, 0, 0.28, None),
        (BELOW, None, 0, 0.27, P),
        (BELOW, P, 5, 0.27, F),
        (BELOW, F, 5, 0.29, F),
        (BELOW, F, 5, 0.3, R),
    ],
)
def test_examples(
    condition: Condition, state: AlertState | None, minutes: int, value: float | None, expected: AlertState | None
) -> None:
    assert next_state(condition, state, NOW - timedelta(minutes=minutes), value, NOW) is expected


def test_without_a_hold_it_fires_immediately() -> None:
    condition = Condition(fires_above=True, threshold=1, clear=1, hold=timedelta())
    assert next_state(condition, None, NOW, 1, NOW) is F


NUMBERS = st.floats(-100, 100)


@given(
    above=st.booleans(), threshold=NUMBERS, margin=st.floats(0, 50), hold=st.integers(0, 5),
    values=st.lists(st.none() | NUMBERS, max_size=40),
)  # fmt: skip
def test_an_alert_fires_only_after_the_hold_and_ends_only_when_clear(
    above: bool, threshold: float, margin: float, hold: int, values: list[float | None]
) -> None:
    clear = threshold - margin if above else threshold + margin
    condition = Condition(above, threshold, clear, timedelta(minutes=hold))
    state: AlertState | None = None
    since, breached_for = NOW, -1
    for minute, value in enumerate(values):
        now = NOW + timedelta(minutes=minute)
        after = next_state(condition, state, since, value, now)
        if value is None:
            assert after is state
            breached_for += breached_for >= 0
            continue
        breached_for = breached_for + 1 if condition.is_breached(value) else -1
        if state is F:
            assert (after is R) == condition.is_clear(value)
        else:
            assert (after is F) == (breached_for >= hold)
            assert (after is P) == (0 <= breached_for < hold)
        if state is None and after is not None:
            since = now
        state = None if after is R else after
        if after is R:
            breached_for = -1
