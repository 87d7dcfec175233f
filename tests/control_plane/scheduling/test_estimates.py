"""Start estimates: reported for queued jobs, stored once per wait, judged when the job starts."""

import random
import statistics
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models import F
from django.utils import timezone

from athanor.backends.fake.backend import World
from athanor.jobs.models import Attempt, Job
from athanor.quotas.capacity import CapacityNode
from athanor.scheduling import estimates, run_times, services, snapshots
from athanor.scheduling.models import StartEstimate
from athanor.scheduling.policy.snapshot import Holding, Pool, Snapshot, Waiting
from athanor.scheduling.run_lengths import PastRun, RunTimes, predict
from athanor.scheduling.start_forecast import CalibrationFactors, Forecast, calibration_factors, forecasts
from athanor.telemetry.models import Progress
from tests.control_plane import drive
from trainer.contract.run import EndClass

HALF = RunTimes({}, [PastRun(50, 100)] * 20)


def snapshot(*waiting: Waiting, held: int = 4) -> Snapshot:
    return Snapshot(
        nodes=[CapacityNode("top", "organisation"), CapacityNode("red", "red", "top")],
        pools=[Pool("pool", "fake/cpu", "cpu", 4, 4)],
        holdings=[Holding("job_0", "red", "pool", held, ends_in_seconds=100, ran_seconds=0)],
        waiting=waiting,
    )


def test_a_line_moves_up_as_runs_end_by_how_long_they_have_taken() -> None:
    line = [Waiting(f"job_{number}", "red", "pool", 4, lasts_seconds=200) for number in (1, 2, 3)]
    found = forecasts(snapshot(*line), [job.job_id for job in line], HALF)
    assert [(each.p50_seconds, each.p90_seconds) for each in found.values()] == [(50, 50), (150, 150), (250, 250)]


def test_what_nobody_knows_is_not_told() -> None:
    for_ever = Snapshot(
        nodes=snapshot().nodes,
        pools=snapshot().pools,
        holdings=[Holding("job_0", "red", "pool", 4, ends_in_seconds=None)],
        waiting=[Waiting("job_1", "red", "pool", 1, lasts_seconds=10)],
    )
    found = forecasts(for_ever, ["job_1"], HALF)["job_1"]
    assert (found.p50_seconds, found.p90_seconds) == (None, None)


def test_the_same_question_has_the_same_answer() -> None:
    shares = RunTimes({}, [PastRun(number, 40) for number in range(1, 41)])
    asked = snapshot(*(Waiting(f"job_{number}", "red", "pool", 2, lasts_seconds=90) for number in range(1, 9)))
    ids = [job.job_id for job in asked.waiting]
    assert forecasts(asked, ids, shares) == forecasts(asked, ids, shares)


def test_the_progress_of_a_running_job_says_when_it_ends_not_its_time_limit() -> None:
    day = Snapshot(
        nodes=snapshot().nodes,
        pools=snapshot().pools,
        holdings=[Holding("job_0", "red", "pool", 4, ends_in_seconds=43_200 - 400, ran_seconds=400)],
        waiting=[Waiting("job_1", "red", "pool", 4, lasts_seconds=86_400)],
    )
    by_limit = forecasts(day, ["job_1"], HALF)["job_1"]
    assert by_limit.p50_seconds == 21_600 - 400
    found = forecasts(day, ["job_1"], RunTimes({}, HALF.of_all, left={"job_0": 200}))["job_1"]
    assert found.p50_seconds is not None and found.p90_seconds is not None
    assert 200 < found.p50_seconds <= found.p90_seconds <= 200 * 1.3 + 30


def test_like_jobs_say_how_long_a_job_runs_before_its_time_limit_does() -> None:
    line = [Waiting(f"job_{number}", "red", "pool", 4, lasts_seconds=86_400) for number in (1, 2)]
    alike = {"job_0": [300.0], "job_1": [70.0]}
    found = forecasts(snapshot(*line), ["job_1", "job_2"], RunTimes({}, HALF.of_all, alike=alike))
    assert [(each.p50_seconds, each.p90_seconds) for each in found.values()] == [(100, 100), (170, 170)]


def test_what_like_jobs_needed_beside_training_is_added_to_the_training_that_is_left() -> None:
    times = RunTimes({}, HALF.of_all, left={"job_0": 40}, beside={"job_0": [7.0]})
    found = forecasts(snapshot(Waiting("job_1", "red", "pool", 4, lasts_seconds=200)), ["job_1"], times)["job_1"]
    assert (found.p50_seconds, found.p90_seconds) == (47, 47)


DAY = 86_400


@pytest.mark.parametrize(
    ("past", "limit", "expected"),
    [
        ([PastRun(180, DAY)] * 20, DAY, 180),
        ([PastRun(180, 360)] * 20, DAY, 180),  # shares of a chosen limit say nothing of the default one
        ([PastRun(180, DAY)] * 20, 600, 180),  # nor the reverse
        ([PastRun(180, DAY)] * 20 + [PastRun(180, 360)] * 20, 600, 300),
        ([PastRun(900, DAY)] * 20, 600, 600),
        ([PastRun(180, DAY)] * 19, 100, 50),  # too few: half the limit
    ],
)
def test_the_default_time_limit_says_nothing_of_a_run(past: list[PastRun], limit: int, expected: int) -> None:
    chance = random.Random(0)
    draws = [RunTimes({}, past).draw(chance, "job_1", "red", limit, 0) for _ in range(501)]
    assert statistics.median(draws) == pytest.approx(expected, abs=1)


def test_nine_of_ten_next_runs_are_within_the_p90_of_however_few_runs() -> None:
    chance = random.Random(0)
    for count in (1, 2, 3, 5, 9, 10, 30):
        met = []
        for _ in range(4000):
            *runs, following = (chance.lognormvariate(4, 0.2) for _ in range(count + 1))
            p50, p90 = predict(runs)
            assert p50 <= p90
            met.append(following <= p90)
        assert 0.87 <= statistics.fmean(met) <= 0.96, f"{count} runs"


def test_equal_runs_leave_a_spread_until_there_are_nine() -> None:
    assert predict([60.0] * 10) == (60.0, 60.0)
    p50, p90 = predict([60.0] * 2)
    assert p50 == 60.0 and 70 < p90 < 90


@pytest.mark.django_db
def test_who_waits_is_told_and_the_first_estimate_is_judged_at_its_start(submit: Callable[..., Job]) -> None:
    first = submit(resources={"cluster": "fake", "processes_per_node": 8}, time_limit_seconds=600)
    second = submit(resources={"cluster": "fake", "processes_per_node": 8}, time_limit_seconds=600)
    services.admit()
    estimates.estimate_due()
    second.refresh_from_db()
    assert second.waiting is not None
    assert 0 < second.waiting["p50_seconds"] <= second.waiting["p90_seconds"] <= 600
    assert second.waiting["position"] == 1
    estimates.estimate_due()
    estimate = StartEstimate.objects.get(job=second)
    assert estimates.calibration().judged == 0
    StartEstimate.objects.update(p50_at=timezone.now() - timedelta(seconds=5))
    Job.objects.filter(pk=first.pk).update(status="succeeded")
    services.admit()
    estimate.refresh_from_db()
    assert estimate.started_at is not None
    found = estimates.calibration()
    assert (found.judged, found.by_p50, found.by_p90) == (1, 0.0, 1.0)
    assert found.median_error_seconds == pytest.approx(5, abs=3)


def test_forecasts_are_stretched_by_how_earlier_ones_were_met() -> None:
    """The waits are twice the estimated median and three times the estimated 90th percentile."""
    judged = [(100, 200, 200)] * 17 + [(100, 200, 600)] * 3
    stretch = calibration_factors(judged)
    assert (stretch.p50, stretch.p90) == (2.0, 3.0)
    assert stretch.of(Forecast(50, 60)) == Forecast(100, 180)
    assert stretch.of(Forecast(None, None)) == Forecast(None, None)
    assert calibration_factors(judged[:5]) == CalibrationFactors(), "a few are no experience"


WHOLE_POOL = {"cluster": "fake", "processes_per_node": 8}


@pytest.mark.django_db
def test_a_wait_behind_a_running_job_is_as_long_as_that_job_has_left(
    submit: Callable[..., Job], world: World, bucket: str
) -> None:
    """A day is the limit of both; the running one has 10 of 40 steps left, at 5 s each."""
    first = submit(resources=WHOLE_POOL, time_limit_seconds=86_400)
    drive.run(first)
    training = first.resolved_spec["training"]
    step = training["steps"] // 4 * 3
    Progress.objects.filter(job=first).update(
        step=step, trained_seconds=5.0 * step, trained_tokens=training["tokens_per_step"] * step
    )
    second = submit(resources=WHOLE_POOL, time_limit_seconds=86_400)
    services.admit()
    estimates.estimate_due()
    second.refresh_from_db()
    assert second.waiting is not None
    left = 5.0 * (training["steps"] - step)
    assert left <= second.waiting["p50_seconds"] <= second.waiting["p90_seconds"] <= left * 1.3 + 30


@pytest.mark.django_db
def test_like_jobs_are_those_of_the_same_user_size_model_and_steps(
    submit: Callable[..., Job], world: World, bucket: str
) -> None:
    ended = submit()
    attempt = drive.run(ended)
    drive.end(world, attempt, EndClass.COMPLETED)
    Attempt.objects.filter(pk=attempt.pk).update(launched_at=F("ended_at") - timedelta(seconds=90))
    paused = submit()
    drive.end(world, drive.run(paused), EndClass.PROCESS_KILLED)
    Job.objects.update(act_after=None)
    drive.end(world, drive.run(paused), EndClass.COMPLETED)
    assert run_times.seconds_of_like_jobs(submit()) == [90.0]
    steps = submit().resolved_spec["training"]["steps"]
    longer = {**ended.spec["training"], "steps": steps + 1}
    assert run_times.seconds_of_like_jobs(submit(training=longer)) == []
    assert run_times.seconds_of_like_jobs(submit(resources=WHOLE_POOL)) == []


@pytest.mark.django_db
def test_a_running_job_still_needs_what_like_jobs_did_beside_training(
    submit: Callable[..., Job], world: World, bucket: str
) -> None:
    """A like job held its slots for 90 s, 60 of them in steps; this one for 20 s, 8 of them in steps: 18 of 30 s are
    left."""
    ended = submit()
    attempt = drive.run(ended)
    drive.end(world, attempt, EndClass.COMPLETED)
    began = F("ended_at") - timedelta(seconds=90)
    Attempt.objects.filter(pk=attempt.pk).update(created_at=began, launched_at=began + timedelta(seconds=2))
    Progress.objects.update_or_create(job=ended, defaults={"trained_seconds": 60.0})
    running = submit()
    drive.run(running)
    Progress.objects.update_or_create(job=running, defaults={"trained_seconds": 8.0, "step": 1, "trained_tokens": 1.0})
    now = timezone.now()
    Job.objects.filter(pk=running.pk).update(admitted_at=now - timedelta(seconds=20))
    assert run_times.run_times(snapshots.take(now).snapshot).beside == {running.id: [18.0]}
