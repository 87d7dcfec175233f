"""Batches are stored once and in order; a resumed run rewinds its curves."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from athanor.core.errors import Conflict, Invalid
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.specs.v1 import JobSpec
from athanor.telemetry import curves, ingest
from athanor.telemetry.models import MetricChunk, Progress
from tests.control_plane import drive
from trainer.contract.run import Batch, MetricPoint, ProgressEvent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(submit: Callable[..., Job]) -> Attempt:
    return drive.start(submit())


def metrics(sequence: int, steps: range, generation: int = 0, writer: str = "rank0") -> Batch:
    points = [
        MetricPoint(step=step, time=NOW, generation=generation, values={"train/loss": 10.0 - step + generation})
        for step in steps
    ]
    return Batch(writer=writer, sequence=sequence, points=points)


def curve_of(job: Job, name: str = "train/loss") -> dict[int, float]:
    points = curves.curves(curves.Asked([job.id], points=1000))[job.id, name]
    return dict(zip(points[0].astype(int).tolist(), points[2].tolist(), strict=True))


def steps_of(job: Job, name: str = "train/loss") -> list[int]:
    return list(curve_of(job, name))


def test_a_batch_sent_twice_is_stored_once(attempt: Attempt) -> None:
    assert ingest.ingest(attempt, "metrics", metrics(0, range(1, 4))) == 1
    assert ingest.ingest(attempt, "metrics", metrics(0, range(1, 4))) == 1
    assert ingest.ingest(attempt, "metrics", metrics(1, range(4, 6))) == 2
    assert steps_of(attempt.job) == [1, 2, 3, 4, 5]


def test_a_gap_is_refused_with_what_comes_next(attempt: Attempt) -> None:
    ingest.ingest(attempt, "metrics", metrics(0, range(1, 2)))
    with pytest.raises(Conflict) as caught:
        ingest.ingest(attempt, "metrics", metrics(2, range(5, 6)))
    assert caught.value.extra == {"next_sequence": 1}
    assert MetricChunk.objects.count() == 1


def test_a_batch_of_another_kind_or_of_nothing_is_refused(attempt: Attempt) -> None:
    with pytest.raises(Invalid):
        ingest.ingest(attempt, "logs", metrics(0, range(1, 2)))
    with pytest.raises(Invalid):
        ingest.ingest(attempt, "metrics", Batch(writer="rank0", sequence=0))


def test_a_new_generation_rewinds_the_curve(attempt: Attempt) -> None:
    ingest.ingest(attempt, "metrics", metrics(0, range(1, 9)))
    ingest.ingest(attempt, "metrics", metrics(1, range(6, 8), generation=1))
    points = curve_of(attempt.job)
    assert list(points) == [1, 2, 3, 4, 5, 6, 7]
    assert points[6] == 10.0 - 6 + 1, "the later generation's value stands"


def test_progress_follows_the_newest_point(attempt: Attempt) -> None:
    ingest.ingest(attempt, "metrics", metrics(0, range(1, 9)))
    progress = Progress.objects.get(job=attempt.job)
    assert (progress.step, progress.values["train/loss"]) == (8, 2.0)


def timed(sequence: int, step: int, tokens_per_second: float, seconds: float, generation: int = 0) -> Batch:
    values = {"throughput/tokens_per_second": tokens_per_second, "time/step_seconds": seconds}
    point = MetricPoint(step=step, time=NOW, generation=generation, values=values)
    return Batch(writer="rank0", sequence=sequence, points=[point])


def test_the_mean_throughput_weighs_steps_by_their_time_and_counts_each_batch_once(attempt: Attempt) -> None:
    """The last step of a run is often slow: its rate is not the run's."""
    steps = [(1, 1000.0, 2.0), (2, 1000.0, 2.0), (3, 100.0, 6.0), (2, 500.0, 4.0)]  # step 2 twice
    for sequence, (step, rate, seconds) in enumerate(steps):
        batch = timed(sequence, step, rate, seconds, generation=int(sequence == 3))
        for _ in range(2):
            ingest.ingest(attempt, "metrics", batch)
    progress = Progress.objects.get(job=attempt.job)
    assert progress.mean_tokens_per_second == pytest.approx((2000 + 2000 + 600 + 2000) / 14)
    assert progress.values["throughput/tokens_per_second"] == 500.0


@pytest.mark.parametrize("values", [(float("nan"), 1.0), (1000.0, float("inf")), (-5.0, 1.0), (1000.0, -1.0)])
def test_impossible_rates_and_times_do_not_change_the_mean(attempt: Attempt, values: tuple[float, float]) -> None:
    ingest.ingest(attempt, "metrics", timed(0, 1, 1000.0, 2.0))
    ingest.ingest(attempt, "metrics", timed(1, 2, *values))
    assert Progress.objects.get(job=attempt.job).mean_tokens_per_second == 1000.0


def test_first_and_last_validation_loss_are_kept(attempt: Attempt) -> None:
    for sequence, (step, loss) in enumerate([(0, 7.6), (10, 5.0), (20, 4.0)]):
        point = MetricPoint(step=step, time=NOW, values={"evaluation/loss": loss})
        ingest.ingest(attempt, "metrics", Batch(writer="rank0", sequence=sequence, points=[point]))
    progress = Progress.objects.get(job=attempt.job)
    assert (progress.validation_first, progress.validation_last) == (7.6, 4.0)


def test_values_that_are_not_finite_leave_a_gap_in_the_curve(attempt: Attempt) -> None:
    points = [MetricPoint(step=step, time=NOW, values={"train/loss": v}) for step, v in ((1, 1.0), (2, None), (3, 2.0))]
    ingest.ingest(attempt, "metrics", Batch(writer="rank0", sequence=0, points=points))
    assert steps_of(attempt.job) == [1, 3]


def test_progress_events_are_stored_in_order(attempt: Attempt) -> None:
    phase = ProgressEvent(time=NOW, type="phase.finished", data={"phase": "import", "seconds": 3.5})
    saved = ProgressEvent(time=NOW, type="checkpoint.saved", data={"seconds": 0.5, "step": 10})
    ingest.ingest(attempt, "progress", Batch(writer="agent", sequence=0, events=[phase, saved, saved]))
    stored = JobEvent.objects.filter(job=attempt.job, actor=attempt.id).order_by("seq")
    assert [(event.type, event.data["seconds"]) for event in stored] == [
        ("phase.finished", 3.5), ("checkpoint.saved", 0.5), ("checkpoint.saved", 0.5),
    ]  # fmt: skip
    seqs = list(JobEvent.objects.filter(job=attempt.job).order_by("seq").values_list("seq", flat=True))
    assert seqs == list(range(1, len(seqs) + 1))


def test_the_steps_of_epochs_are_written_to_the_resolved_spec(submit: Callable[..., Job], spec: dict[str, Any]) -> None:
    attempt = drive.start(
        submit(training={**spec["training"], "epochs": 2.0, "steps": 500, "schedule": {"warmup_steps": 100}})
    )
    send_steps(attempt, 0, {"steps": 120, "warmup_steps": 24, "epochs": 2.0, "sequences": 480})
    job = Job.objects.get(pk=attempt.job_id)
    training = job.resolved_spec["training"]
    assert (training["steps"], training["schedule"]["warmup_steps"]) == (120, 24)
    assert job.spec["training"]["steps"] == 500
    JobSpec.model_validate(job.resolved_spec)


@pytest.mark.parametrize(
    "data",
    [
        {}, {"steps": 120}, {"steps": 501, "warmup_steps": 10}, {"steps": 0, "warmup_steps": 0},
        {"steps": 10, "warmup_steps": 11}, {"steps": 120.0, "warmup_steps": 10}, {"steps": True, "warmup_steps": 0},
        {"steps": [1], "warmup_steps": "0"}, {"steps": 120, "warmup_steps": -1},
    ],
)  # fmt: skip
def test_an_agent_cannot_write_other_steps(
    submit: Callable[..., Job], spec: dict[str, Any], data: dict[str, Any]
) -> None:
    attempt = drive.start(
        submit(training={**spec["training"], "epochs": 2.0, "steps": 500, "schedule": {"warmup_steps": 100}})
    )
    before = attempt.job.resolved_spec
    send_steps(attempt, 0, data)
    assert Job.objects.get(pk=attempt.job_id).resolved_spec == before


def test_an_agent_cannot_shorten_a_job_without_epochs(attempt: Attempt) -> None:
    before = attempt.job.resolved_spec
    send_steps(attempt, 0, {"steps": 1, "warmup_steps": 0})
    assert Job.objects.get(pk=attempt.job_id).resolved_spec == before


def send_steps(attempt: Attempt, sequence: int, data: dict[str, Any]) -> None:
    event = ProgressEvent(time=NOW, type="steps.resolved", data=data)
    ingest.ingest(attempt, "progress", Batch(writer="agent", sequence=sequence, events=[event]))
