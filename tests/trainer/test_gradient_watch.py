"""Large gradients are noticed by their norm and by the steps before, once until they are over."""

import math

from trainer.contract.optimisation import GradientWatchSpec
from trainer.reporting.gradient_watch import MIN_STEPS, GradientWatch


def test_a_norm_above_the_absolute_limit_is_reported_until_it_is_over() -> None:
    watch = GradientWatch(GradientWatchSpec())
    found = [watch.check(norm) for norm in (1.0, 4.6e8, 4.6e8, 1.0, 2e4)]
    assert [each is not None for each in found] == [False, True, False, False, True]
    assert found[1] == "above optimizer.gradient_watch.absolute 10000"


def test_a_norm_is_compared_with_the_median_of_the_steps_before() -> None:
    watch = GradientWatch(GradientWatchSpec())
    assert watch.check(0.5) is None
    assert watch.check(50.0) is None, "too few steps to compare with"
    for _ in range(MIN_STEPS):
        assert watch.check(0.5) is None
    assert watch.check(4.9) is None
    assert watch.check(5.1) == "10.2 times the median of the last 23 steps"


def test_limits_can_be_disabled_and_skipped_steps_are_left_out() -> None:
    watch = GradientWatch(GradientWatchSpec(absolute=None, relative=None))
    assert [watch.check(norm) for norm in [1.0] * 30 + [1e9, math.nan, math.inf]] == [None] * 33
    watch = GradientWatch(GradientWatchSpec())
    assert [watch.check(norm) for norm in (math.nan, math.inf)] == [None, None]
