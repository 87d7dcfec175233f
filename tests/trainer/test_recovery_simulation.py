"""The recovery simulator: time is conserved, known results are met, and what it cannot know is marked."""

import subprocess
import sys
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.agent.ladder import Rung
from trainer.contract.checkpoint_interval import best_interval
from trainer.simulation import report
from trainer.simulation.engine import Activity, simulate
from trainer.simulation.inputs import LLAMA_3_CAUSES, NOTES, PLANNED, Inputs, Tier, overridden

STORED_ONLY = Inputs(shadow_interval=None, repeat=0, spares=0, slowdown=0.0, stall=8.0)
NEVER = 1e15


def waste(gpus: int, inputs: Inputs, days: float = 60) -> float:
    return 1 - fmean(simulate(gpus, days, inputs, seed).goodput for seed in range(4))


@given(
    gpus=st.integers(1, 20_000),
    days=st.floats(0.001, 3),
    hours=st.floats(5, 1e5),
    planned=st.none() | st.floats(100, 1e5),
    interval=st.none() | st.floats(1, 1e4),
    shadow=st.none() | st.floats(0.1, 100),
    share=st.floats(0, 1),
    recovery=st.tuples(*[st.floats(0, 3000)] * 4),
    counts=st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()),
    seed=st.integers(0, 99),
)
def test_every_microsecond_is_of_one_activity(
    gpus: int, days: float, hours: float, planned: float | None, interval: float | None, shadow: float | None,
    share: float, recovery: tuple[float, ...], counts: tuple[int, int, bool], seed: int,
) -> None:  # fmt: skip
    inputs = Inputs(
        hours_between_failures=max(hours, gpus / 50), planned_hours=planned and max(planned, gpus / 50),
        interval=interval and max(interval, days * 20), shadow_interval=shadow, shadow_share=share, stall=recovery[0],
        restart=recovery[1], new_attempt=recovery[2], detect=recovery[3], repeat=counts[0], spares=counts[1],
        has_peers=counts[2],
    )  # fmt: skip
    result = simulate(gpus, days, inputs, seed)
    assert sum(result.times.values()) == result.duration
    assert result.duration == pytest.approx(days * 24 * 3600 * 1_000_000, abs=1)
    assert all(time >= 0 for time in result.times.values())
    assert sum(result.rungs.values()) == sum(result.tiers.values())
    assert simulate(gpus, days, inputs, seed) == result


def test_without_failures_only_saves_and_copies_take_time() -> None:
    inputs = Inputs(hours_between_failures=NEVER, interval=600.0)
    result = simulate(1024, 30, inputs)
    assert not result.causes
    assert set(result.times) == {Activity.PRODUCTIVE, Activity.SAVES, Activity.COPIES}
    expected = 600 / (600 * (1 + inputs.shadow_share) + inputs.save_cost)
    assert result.goodput == pytest.approx(expected, abs=1e-4)
    assert simulate(1024, 30, replace(inputs, interval=None)).interval == 86_400


def test_youngs_interval_is_near_the_least_waste() -> None:
    mean_seconds = 3600 * STORED_ONLY.hours_between_failures / 4096
    young = best_interval(STORED_ONLY.save_cost, mean_seconds, STORED_ONLY.save_seconds)
    assert simulate(4096, 1, STORED_ONLY).interval == young
    by_factor = {factor: waste(4096, replace(STORED_ONLY, interval=factor * young)) for factor in (0.125, 0.5, 1, 2, 8)}
    assert by_factor[1] <= 1.05 * min(by_factor.values())
    assert by_factor[0.125] > 1.3 * by_factor[1]
    assert by_factor[8] > 1.3 * by_factor[1]


def test_the_waste_of_stored_checkpoints_is_that_of_the_formula() -> None:
    """1 - ETTR of arXiv:2410.21680: saves, and with each failure the restart and half an interval."""
    inputs = replace(STORED_ONLY, interval=900.0, new_attempt=300.0, detect=0.0, detect_node=0.0, detect_hang=0.0)
    rate = 2048 / (3600 * inputs.hours_between_failures)
    read = inputs.state_gb / inputs.read_rate
    # A checkpoint that is still written when the failure comes is not there yet.
    ettr = (1 - rate * (300 + read + inputs.save_seconds + 900 / 2)) / (1 + inputs.save_cost / 900)
    assert waste(2048, inputs, days=300) == pytest.approx(1 - ettr, rel=0.1)


def test_goodput_falls_with_the_rate_of_failures_and_the_time_of_restarts() -> None:
    by_rate = [waste(4096, Inputs(hours_between_failures=hours), 20) for hours in (NEVER, 200_000, 50_000, 5000)]
    assert by_rate == sorted(by_rate)
    by_restart = [waste(4096, Inputs(restart=seconds), 30) for seconds in (1, 100, 1000)]
    assert by_restart == sorted(by_restart)
    by_size = [waste(gpus, Inputs(), 54) for gpus in report.SIZES]
    assert by_size == sorted(by_size)
    by_spares = [waste(16_384, Inputs(spares=spares)) for spares in report.SPARES]
    assert by_spares == sorted(by_spares, reverse=True)


def test_rungs_and_tiers_are_those_of_the_trainer() -> None:
    without = simulate(4096, 54, Inputs(spares=0))
    assert set(without.rungs) == {Rung.RESTART, Rung.END}
    assert set(without.tiers) == {Tier.SHADOW, Tier.STORED}
    assert without.rungs[Rung.END] >= without.causes["GPU"] + without.causes["host"]
    with_spares = simulate(4096, 54, Inputs(spares=4))
    assert set(with_spares.rungs) == {Rung.RESTART, Rung.LEAVE, Rung.FOLLOW, Rung.END}
    assert with_spares.tiers[Tier.STORED] >= with_spares.rungs[Rung.LEAVE] + with_spares.rungs[Rung.FOLLOW]
    peers = simulate(4096, 54, Inputs(spares=4, has_peers=True))
    assert peers.tiers[Tier.PEER] > 0
    assert peers.times[Activity.LOST] < with_spares.times[Activity.LOST]
    planned = simulate(4096, 54, Inputs(hours_between_failures=NEVER, planned_hours=50_000))
    assert set(planned.causes) == {PLANNED.name}
    assert (set(planned.rungs), planned.times[Activity.LOST]) == ({Rung.END}, 0)


def test_the_causes_are_the_published_ones() -> None:
    assert sum(cause.count for cause in LLAMA_3_CAUSES) == 419
    assert set(NOTES) == set(Inputs.__dataclass_fields__)
    counts = simulate(16_384, 540, Inputs()).causes
    assert counts["GPU"] / sum(counts.values()) == pytest.approx(262 / 419, abs=0.03)


def test_what_is_extrapolated_is_marked() -> None:
    grounds = {gpus: report.ground_of(gpus, Inputs()) for gpus in (8, 64, 2048, 16_384, 32_768)}
    assert grounds == {
        8: "own durations of recovery", 64: "extrapolated: between own and published durations",
        2048: "published durations of others", 16_384: "published durations of others",
        32_768: "extrapolated beyond published sizes",
    }  # fmt: skip
    assert "not measured on GPUs" in report.ground_of(8, Inputs(has_peers=True))
    given_durations = report.ground_of(512, Inputs(restart=1.0, new_attempt=1.0))
    assert given_durations == "given durations of recovery"


def test_inputs_that_cannot_be_are_refused() -> None:
    for wrong in ({"state_gb": 0}, {"interval": -1.0}, {"hours_between_failures": 0}, {"detect": -1.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            overridden(Inputs(), **wrong)
    with pytest.raises(ValueError, match="0 GPUs"):
        simulate(0, 1, Inputs())


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_tables_and_names_wrong_inputs() -> None:
    found = run("tiers", "--gpus", "64", "--days", "2", "--seeds", "1", "--set", "restart=3").stdout
    assert "64 GPUs, by tiers" in found
    assert "peer copies were not measured" in found
    inputs = run("--inputs", "--set", "restart=3").stdout.splitlines()
    assert next(line for line in inputs if line.startswith("restart ")).split() == ["restart", "3", "given"]
    assert "'colour'" in run("colour").stderr
    for wrong in ("colour=1", "has_peers=1", "state_gb=none"):
        refused = run("--set", wrong, "size")
        assert (refused.returncode, wrong.split("=")[0] in refused.stderr) == (2, True), refused.stderr
