"""Many workers and jobs on a backend that loses responses: each attempt starts once, every job ends correctly."""

import random
import threading
import time
from collections.abc import Callable

import pytest
from django.db import connection

from athanor.backends.fake.backend import World
from athanor.dispatch import finalise, observe, stop
from athanor.jobs import services
from athanor.jobs.models import Attempt, Job, JobEvent
from athanor.jobs.states import FINAL
from athanor.scheduling import services as scheduling
from tests.control_plane import drive
from trainer.contract.run import EndClass

WORKERS = 6
JOBS = 24
DEADLINE_SECONDS = 120.0  # far beyond what it takes; the number of rounds depends on how threads are scheduled
pytestmark = pytest.mark.django_db(transaction=True)


def expected_end(number: int) -> tuple[str, str]:
    if number % 4 == 1:
        return "failed", "data_error"
    if number % 4 == 2:
        return "cancelled", "stopped_by_user"
    return "succeeded", "completed"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_attempt_starts_twice_and_every_job_ends_as_it_should(
    submit: Callable[..., Job], world: World, bucket: str, seed: int
) -> None:
    jobs = [submit(name=f"job-{number}") for number in range(JOBS)]
    numbers = {job.id: number for number, job in enumerate(jobs)}
    done = threading.Event()
    failures: list[BaseException] = []

    def worker(number: int) -> None:
        chance = random.Random(seed * 100 + number)
        sweepers = [scheduling.admit, drive.dispatch, observe.observe_due, stop.stop_due, finalise.finalise_due]
        try:
            while not done.is_set():
                world.lose_answers = chance.choice([0, 0, 1])
                chance.choice(sweepers)()
        except BaseException as error:  # noqa: BLE001 - a thread's error must reach the test
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    try:
        until = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < until:
            _play_agents(world, numbers)
            Job.objects.filter(act_after__isnull=False).update(act_after=None)
            unfinished = Job.objects.exclude(status__in=[status.value for status in FINAL]).count()
            if not unfinished or failures:
                break
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert {job.name: drive.status_of(job) for job in jobs} == {
        f"job-{number}": expected_end(number) for number in range(JOBS)
    }
    assert len(world.created) == len(set(world.created)), "started twice"
    assert not world.running, "forgotten"
    for job in jobs:
        seqs = list(JobEvent.objects.filter(job=job).order_by("seq").values_list("seq", flat=True))
        assert seqs == list(range(1, len(seqs) + 1)), "events missing"


def _play_agents(world: World, numbers: dict[str, int]) -> None:
    """Let the agents of the submitted attempts take their next step."""
    for attempt in Attempt.objects.filter(status__in=["submitted", "running"]).select_related("job"):
        name = attempt.backend_name
        if name not in world.running:
            continue
        drive.beat(attempt, step=1)
        wanted = expected_end(numbers[attempt.job_id])[0]
        if wanted == "cancelled":
            services.request_stop(attempt.job_id, actor="ada")
            if name in world.cancelled:
                drive.report(attempt, EndClass.STOPPED)
                world.finish(name, 64)
        elif wanted == "failed":
            drive.report(attempt, EndClass.DATA_ERROR)
            world.finish(name, 66)
        else:
            drive.register_model(attempt)
            drive.report(attempt, EndClass.COMPLETED)
            world.finish(name, 0)
