"""Reading a curve of any range takes few rows, with compacted, spliced and downsampled data."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from athanor.core import ids
from athanor.jobs.models import Attempt, Job
from athanor.jobs.states import AttemptStatus
from athanor.telemetry import codec, compaction, curves, ingest, retention, rollups
from athanor.telemetry.models import MetricBlock, MetricChunk, MetricSegment, MetricSeries, Progress, Writer
from athanor.telemetry.token_counts import token_counts
from tests.control_plane import drive
from tests.control_plane.conftest import Api
from trainer.contract.optimisation import batch_size_schedule
from trainer.contract.run import Batch, MetricPoint

START = datetime(2026, 1, 1, tzinfo=UTC)
LAUNCH = START - timedelta(days=1)
pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(submit: Callable[..., Job]) -> Attempt:
    return drive.start(submit())


def wave(step: int) -> float:
    return math.sin(step / 50) + step % 7 / 10


def point(step: int, generation: int = 0, **values: float | None) -> MetricPoint:
    return MetricPoint(
        step=step,
        time=START + timedelta(seconds=step),
        generation=generation,
        values={name.replace("__", "/"): value for name, value in values.items()} or {"train/loss": wave(step)},
    )


def send(attempt: Attempt, points: list[MetricPoint], batch: int = 500) -> None:
    """Send points in batches, as the writer of their worker group."""
    attempt.created_at = LAUNCH  # as if it had run then: times before an attempt are not believed
    writer = f"rank0-g{points[0].generation}"
    known = Writer.objects.filter(attempt=attempt, kind="metrics", name=writer).first()
    first = known.next_sequence if known else 0
    for sequence, start in enumerate(range(0, len(points), batch)):
        part = Batch(writer=writer, sequence=first + sequence, points=points[start : start + batch])
        ingest.ingest(attempt, "metrics", part)


def read(job: Job, name: str = "train/loss", **asked: Any) -> dict[int, float]:
    found = curves.curves(curves.Asked([job.id], **asked)).get((job.id, name), rollups.NO_POINTS)
    return dict(zip(found[0].astype(int).tolist(), found[2].tolist(), strict=True))


def another_attempt(attempt: Attempt) -> Attempt:
    attempt.status = AttemptStatus.ENDED.value
    attempt.save()
    name = ids.attempt_id()
    return Attempt.objects.create(id=name, job=attempt.job, number=attempt.number + 1, backend_name=name)


@pytest.mark.parametrize("batch", [1, 7, 400, 1500])
def test_every_point_comes_back_however_it_was_sent(attempt: Attempt, batch: int) -> None:
    count = 40 if batch == 1 else 2600
    send(attempt, [point(step) for step in range(1, count + 1)], batch)
    assert read(attempt.job, points=5000) == {step: wave(step) for step in range(1, count + 1)}
    assert Progress.objects.get(job=attempt.job).loose_rows < compaction.ROWS
    assert MetricChunk.objects.count() <= compaction.ROWS


def test_points_are_never_rows(attempt: Attempt) -> None:
    send(attempt, [point(step, a=1.0, b=2.0) for step in range(5000)], 10)
    rows = sum(model.objects.count() for model in (MetricChunk, MetricSegment, MetricSeries, MetricBlock))
    assert rows < 80, "10,000 points"


def test_a_long_series_is_drawn_from_few_buckets_with_its_spikes_and_ends(attempt: Attempt) -> None:
    values = {step: wave(step) for step in range(70_000)} | {33_333: 99.0, 51_111: -99.0}
    send(attempt, [point(step, loss=value) for step, value in values.items()], 10_000)
    with CaptureQueriesContext(connection) as seen:
        drawn = read(attempt.job, "loss", points=200)
    assert len(seen) <= 5
    assert len(drawn) <= 200
    assert drawn.items() <= values.items(), "real points"
    assert {0: values[0], 69_999: values[69_999], 33_333: 99.0, 51_111: -99.0}.items() <= drawn.items()


def test_a_narrow_range_is_drawn_in_full(attempt: Attempt) -> None:
    send(attempt, [point(step) for step in range(6000)], 1000)
    assert read(attempt.job, from_step=3100, to_step=3400, points=500) == {s: wave(s) for s in range(3100, 3401)}
    assert read(attempt.job, from_step=5990) == {step: wave(step) for step in range(5990, 6000)}
    assert read(attempt.job, from_step=7000) == {}


@pytest.mark.parametrize("resumed_at", [6, 700, 2048, 30_001])
def test_a_resume_rewinds_the_curve_and_the_raw_attempt_stays_readable(attempt: Attempt, resumed_at: int) -> None:
    last = resumed_at + 900
    send(attempt, [point(step, loss=1.0) for step in range(last + 1)], 4000)
    second = another_attempt(attempt)
    send(second, [point(step, loss=2.0) for step in range(resumed_at, resumed_at + 30)])
    drawn = read(attempt.job, "loss", points=300)
    assert all(value == (1.0 if step < resumed_at else 2.0) for step, value in drawn.items())
    assert max(drawn) == resumed_at + 29
    assert max(step for step in drawn if step < resumed_at) >= resumed_at - 2 - last // 150, "drawn up to the cut"
    raw = read(attempt.job, "loss", points=300, attempt=1)
    assert (max(raw), set(raw.values())) == (last, {1.0})
    assert min(read(attempt.job, "loss", attempt=2)) == resumed_at


def test_three_generations_each_hide_what_they_did_again(attempt: Attempt) -> None:
    for generation, steps in enumerate([range(1, 2000), range(1500, 1900), range(1000, 1200)]):
        send(attempt, [point(step, generation, loss=float(generation)) for step in steps], 600)
    drawn = read(attempt.job, "loss", points=5000)
    assert list(drawn) == list(range(1, 1200))
    assert {step: value for step, value in drawn.items() if value} == dict.fromkeys(range(1000, 1200), 2.0)


def test_means_with_the_lowest_and_highest_of_each_stretch(attempt: Attempt) -> None:
    send(attempt, [point(step, loss=float(step % 10)) for step in range(10_000)], 1000)
    key = (attempt.job_id, "loss")
    buckets = curves.averages(curves.Asked([attempt.job_id], points=50))[key]
    assert buckets.shape[1] <= 50
    assert buckets[rollups.COUNT].sum() == 10_000
    assert abs(buckets[rollups.SUM].sum() / 10_000 - 4.5) < 1e-9
    assert (set(buckets[rollups.LOW]), set(buckets[rollups.HIGH])) == ({0.0}, {9.0})


def test_sparse_series_and_values_that_are_not_finite(attempt: Attempt) -> None:
    points = [point(step, loss=None if step % 2 else 1.0, **({"eval": 3.0} if step % 500 == 0 else {}))
              for step in range(2000)]  # fmt: skip
    send(attempt, points, 100)
    assert list(read(attempt.job, "loss", points=5000)) == list(range(0, 2000, 2))
    assert list(read(attempt.job, "eval")) == [0, 500, 1000, 1500]
    assert curves.names_of([attempt.job_id]) == ["eval", "loss"]


def test_the_sweeper_compacts_what_an_ended_attempt_left(attempt: Attempt) -> None:
    send(attempt, [point(step) for step in range(100)], 10)
    assert compaction.compact_due() == 0, "it may go on"
    Attempt.objects.update(status=AttemptStatus.ENDED.value)
    assert compaction.compact_due() == 1
    assert (MetricChunk.objects.count(), Progress.objects.get().loose_rows) == (0, 0)
    assert read(attempt.job) == {step: wave(step) for step in range(100)}
    assert compaction.compact_due() == 0


def test_retention_takes_the_finest_resolution_of_long_series_first(attempt: Attempt) -> None:
    send(attempt, [point(step, long=wave(step)) for step in range(70_000)], 10_000)
    send(attempt, [point(step, short=wave(step)) for step in range(70_000, 73_000)], 1000)
    asked = retention.Policy(metrics=(90, 365, 0), logs=0)
    assert retention.sweep(asked=asked) == (0, 0), "the job has not ended"
    Job.objects.update(finished_at=timezone.now() - timedelta(days=91))
    assert retention.sweep(asked=asked) == (1, 0)
    assert retention.sweep(asked=asked) == (0, 0)
    assert not MetricBlock.objects.filter(series__name="long", level=0).exists()
    assert MetricBlock.objects.filter(series__name="short", level=0).exists()
    drawn = read(attempt.job, "long", points=2000)
    assert {0: wave(0), 69_999: wave(69_999)}.items() <= drawn.items()
    assert len(drawn) > 1900
    assert read(attempt.job, "long", from_step=30_000, to_step=30_200), "coarse, and there"
    Job.objects.update(finished_at=timezone.now() - timedelta(days=366))
    assert retention.sweep(asked=asked) == (0, 0), "the next resolution would not fill a chart"


def query(api: Api, **body: Any) -> Any:
    return api.send("POST", "metrics:query", body)


def test_many_series_of_many_jobs_in_one_request(api: Api, submit: Callable[..., Job]) -> None:
    jobs = [submit(name=f"run-{number}", labels={"sweep": "a"}) for number in range(4)]
    for number, attempt in enumerate(drive.start(job) for job in jobs):
        send(attempt, [point(step, a=float(number), b=step / 10) for step in range(900)], 300)
    with CaptureQueriesContext(connection) as seen:
        answer = query(api, jobs=[job.id for job in jobs], series=["a", "b", "none"], points=20)
    assert answer.status_code == 200, answer.content
    assert len(seen) < 15
    items = answer.json()["items"]
    assert [item["id"] for item in items] == [job.id for job in jobs]
    assert set(items[3]["series"]) == {"a", "b"}
    assert answer.json()["names"] == ["a", "b"]
    assert items[0]["tokens"]["tokens"][0] == 0
    assert set(items[3]["series"]["a"]["values"]) == {3.0}
    curve = items[0]["series"]["b"]
    assert (len(curve["steps"]), curve["steps"][0], curve["steps"][-1]) == (20, 0, 899)
    assert curve["seconds"][-1] - curve["seconds"][0] == pytest.approx(899, abs=0.01)
    means = query(api, filters={"labels": {"sweep": "a"}}, limit=2, series=["b"], points=10, draw="mean")
    assert [item["name"] for item in means.json()["items"]] == ["run-3", "run-2"]
    assert means.json()["items"][0]["series"]["b"]["highest"][-1] == 89.9


@pytest.mark.parametrize("steps", [50, 1000, 20_000])
def test_tokens_between_the_given_steps_lie_on_a_line_to_a_thousandth_of_a_ramp(steps: int) -> None:
    ramp = {"start_tokens_per_step": 2048, "steps": 5000}
    counts = token_counts(
        {"sequence_length": 512, "tokens_per_step": 65_536, "steps": steps, "batch_ramp": ramp},
    )
    assert counts is not None
    schedule = batch_size_schedule(65_536, 512, ramp)
    every = np.arange(steps + 1)
    exact = np.array([schedule.sequences_before(int(step)) * 512 for step in every])
    drawn = np.interp(every, counts["steps"], counts["tokens"])
    increase = min(steps, 5000) * 65_536
    assert np.abs(drawn - exact).max() <= increase / 1000
    assert counts["steps"][-1] == steps
    assert token_counts(None) is None


def test_what_a_query_cannot_be_is_refused(api: Api, submit: Callable[..., Job]) -> None:
    job = submit().id
    for body in ({"series": ["a"]}, {"jobs": [job], "filters": {}, "series": ["a"]}, {"jobs": [job]},
                 {"jobs": [job], "series": ["a"], "points": 3}, {"jobs": [job] * 101, "series": ["a"]}):  # fmt: skip
        assert query(api, **body).status_code == 422, body
    assert query(api, jobs=[job], series=["a"]).json()["items"][0]["series"] == {}


def test_curves_of_another_teams_jobs_are_not_there(
    submit: Callable[..., Job], api_of: Callable, make_user: Callable, other_team: Any
) -> None:
    job = submit()
    send(drive.start(job), [point(1)])
    stranger = api_of(make_user("sam", other_team), other_team)
    refused = query(stranger, jobs=[job.id], series=["train/loss"])
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    assert query(stranger, filters={}, series=["train/loss"]).json()["items"] == []


def test_one_jobs_metrics_by_range_and_attempt(api: Api, attempt: Attempt) -> None:
    send(attempt, [point(step) for step in range(50)])
    send(another_attempt(attempt), [point(step, **{"train__loss": 0.0}) for step in range(40, 45)])
    path = f"jobs/{attempt.job_id}/metrics"
    whole = api.send("GET", path).json()
    assert (whole["last_step"], whole["names"]) == (44, ["train/loss"])
    training = attempt.job.resolved_spec["training"]
    assert whole["tokens"] == {
        "steps": [0, training["steps"]],
        "tokens": [0, training["steps"] * training["tokens_per_step"]],
    }
    assert whole["series"]["train/loss"]["times"][1] == "2026-01-01T00:00:01+00:00"
    part = api.send("GET", f"{path}?after_step=9&to_step=12&names=train/loss").json()["series"]["train/loss"]
    assert part["steps"] == [10, 11, 12]
    raw = api.send("GET", f"{path}?attempt=1").json()["series"]["train/loss"]
    assert (raw["steps"][-1], raw["values"][-1]) == (49, wave(49))


@pytest.mark.django_db(transaction=True)
def test_what_the_version_before_stored_stays_readable_and_is_compacted(attempt: Attempt) -> None:
    """Its tables are filled as it did it, then upgraded with their rows."""
    before = [("telemetry", "0002_row_security")]
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes("telemetry")
    executor = MigrationExecutor(connection)
    executor.migrate(before)
    try:
        old = executor.loader.project_state(before).apps
        old.get_model("telemetry", "Progress").objects.create(job_id=attempt.job_id, step=20, log_lines=3)
        for generation, steps in enumerate([range(1, 31), range(11, 21)]):
            rows = [[step, START.timestamp() + step, {"loss": float(generation)}] for step in steps]
            for start in range(0, len(rows), 5):
                part = rows[start : start + 5]
                old.get_model("telemetry", "MetricChunk").objects.create(
                    attempt_id=attempt.id,
                    content=codec.pack_rows(part),
                    count=len(part),
                    generation=generation,
                    first_step=part[0][0],
                    last_step=part[-1][0],
                )
        lines = [[START.timestamp(), 0, "stdout", f"line {number}"] for number in range(3)]
        old.get_model("telemetry", "LogChunk").objects.create(
            attempt_id=attempt.id, content=codec.pack_rows(lines), count=3, first_line=0
        )
    finally:
        MigrationExecutor(connection).migrate(newest)
    expected = {step: 0.0 for step in range(1, 11)} | {step: 1.0 for step in range(11, 21)}
    assert read(attempt.job, "loss") == expected
    progress = Progress.objects.get(job=attempt.job)
    assert (progress.loose_rows, progress.loose_lines) == (40, 3)
    Attempt.objects.update(status=AttemptStatus.ENDED.value)
    assert compaction.compact_due() == 2
    assert not MetricChunk.objects.exists()
    assert read(attempt.job, "loss") == expected
