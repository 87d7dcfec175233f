"""Prices and carbon over time, exactly; forecasts; periods. Pure, without a database."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athanor.budgets import tariff
from athanor.budgets.cost_forecast import forecast
from athanor.budgets.periods import Every, bounds, pieces, seconds_of
from athanor.budgets.tariff import Point, Rule, Steps

EVERY_DAY = frozenset(range(7))
steps = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 10**7)), min_size=1, max_size=8, unique_by=lambda s: s[0]
)


def made(found: list[tuple[int, int]]) -> Steps:
    return tariff.join_steps(sorted(found))


@given(steps, st.integers(0, 4000), st.integers(0, 4000))
def test_an_integral_is_the_sum_of_its_seconds(found: list[tuple[int, int]], start: int, length: int) -> None:
    prices, length = made(found), length % 600
    assert prices.integral(start, start + length) == sum(prices.at(second) for second in range(start, start + length))


@given(steps, st.lists(st.integers(1, 900), min_size=1, max_size=12), st.integers(1, 64))
def test_the_cost_is_the_same_however_a_run_is_cut(found: list, cuts: list[int], slots: int) -> None:
    prices, at, rest, total = made(found), 0, 0, 0
    for length in cuts:
        cost, rest = tariff.cost_with_rest(prices, slots, at, at + length, rest)
        total, at = total + cost, at + length
    whole = tariff.cost_with_rest(prices, slots, 0, at, 0)
    assert (total, rest) == whole
    assert total <= tariff.cost(prices, slots, 0, at) <= total + 1, "what is reserved suffices"


@given(steps, st.integers(0, 10**9))
def test_what_lasts_is_paid_for_and_a_second_more_is_not(found: list, amount: int) -> None:
    prices = made(found)
    until = prices.lasts_until(0, 6000, amount)
    assert prices.integral(0, until) <= amount
    assert until == 6000 or prices.integral(0, until + 1) > amount


def test_the_first_rule_that_holds_says_the_price() -> None:
    night = Rule(EVERY_DAY, 22, 6, "UTC", 10)
    weekend = Rule(frozenset({5, 6}), 0, 24, "UTC", 20)
    monday = seconds_of(datetime(2026, 3, 9, tzinfo=UTC))
    prices = tariff.by_rules(100, (night, weekend), monday, monday + 7 * 86_400)
    hour = 3600
    assert [prices.at(monday + hours * hour) for hours in (0, 5, 6, 21, 22)] == [10, 10, 100, 100, 10]
    saturday = monday + 5 * 86_400
    assert [prices.at(saturday + hours * hour) for hours in (3, 12, 23)] == [10, 20, 10]
    assert prices.integral(monday, monday + 86_400) == (8 * 10 + 16 * 100) * hour


def test_rules_follow_the_clock_of_their_zone() -> None:
    """On 29 March 2026 Berlin's clocks go from 2 to 3 at 1 UTC; India's are at half hours."""
    berlin = Rule(EVERY_DAY, 8, 9, "Europe/Berlin", 1)
    before, after = datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 30, tzinfo=UTC)
    prices = tariff.by_rules(0, (berlin,), seconds_of(before), seconds_of(after + timedelta(days=1)))
    assert [prices.at(seconds_of(day + timedelta(hours=hour))) for day in (before, after) for hour in (6, 7)] == [
        0,
        1,
        1,
        0,
    ]
    india = tariff.by_rules(0, (Rule(EVERY_DAY, 8, 9, "Asia/Kolkata", 1),), 0, 86_400)
    assert india.spans(0, 86_400) == [(0, 9000, 0), (9000, 12_600, 1), (12_600, 86_400, 0)]


def test_a_point_holds_up_to_the_next_and_not_for_ever() -> None:
    series = tariff.by_points([Point(100, 5), Point(200, 7), Point(1000, 9)], timedelta(seconds=300))
    assert [series.at(second) for second in (99, 100, 199, 200, 499, 500, 1000, 1299, 1300)] == [
        None, 5, 5, 7, 7, None, 9, 9, None,
    ]  # fmt: skip
    over = tariff.overlay(series, Steps((0,), (1,)))
    assert [over.at(second) for second in (50, 150, 600, 2000)] == [1, 5, 1, 1]
    assert tariff.by_points([], timedelta(seconds=1)).at(5) is None


@pytest.mark.parametrize(
    ("every", "moment", "start", "end"),
    [
        ("day", "2026-02-28T23:59:59", "2026-02-28", "2026-03-01"),
        ("month", "2026-12-31T23:00:00", "2026-12-01", "2027-01-01"),
        ("quarter", "2026-11-05T00:00:00", "2026-10-01", "2027-01-01"),
        ("quarter", "2024-02-29T00:00:00", "2024-01-01", "2024-04-01"),
    ],
)
def test_periods_are_those_of_the_calendar(every: str, moment: str, start: str, end: str) -> None:
    found = bounds(Every(every), datetime.fromisoformat(moment).replace(tzinfo=UTC))
    assert [at.strftime("%Y-%m-%d") for at in found] == [start, end]


@given(st.integers(0, 10**6), st.integers(0, 10**5))
def test_pieces_are_cut_at_full_hours_and_make_up_the_whole(start: int, length: int) -> None:
    found = pieces(start, start + length)
    assert sum(end - begin for begin, end in found) == length
    assert all(begin // 3600 == (end - 1) // 3600 for begin, end in found)


def test_a_forecast_learns_from_days_and_names_the_end() -> None:
    day = 86_400
    few = forecast(amount=1000, spent=100, seconds_left=10 * day, rate_per_day=50, days=[10, 20])
    assert (few.p50, few.p90, few.at_present_rate, few.exhausted_in_seconds) == (600, None, 600, None)
    known = forecast(amount=1000, spent=100, seconds_left=16 * day, rate_per_day=0, days=[80, 100, 120] * 3)
    assert known.p50 == 100 + 16 * 100
    assert known.p90 is not None and known.p50 < known.p90 < known.p50 + 16 * 20
    assert known.exhausted_in_seconds == 9 * day, "900 are left, at 100 a day"
    assert forecast(amount=5, spent=5, seconds_left=day, rate_per_day=0, days=[]).exhausted_in_seconds == 0
