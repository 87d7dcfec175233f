"""Parts of the platform die while a job runs. The job must neither end, nor start twice, nor lose a step."""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deploy.local.handle import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
OUTAGE_SECONDS = 20.0


def assert_whole(stack, job_id: str, steps: int) -> None:
    """Succeeded in one attempt, every step recorded exactly once."""
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["reason"]
    assert job["attempt_count"] == 1
    assert stack.steps_of(job_id) == list(range(1, steps + 1))


def a_trainer(stack) -> psutil.Process:
    """The busiest of the processes that a fork server has forked: one that trains."""
    parents, fork_servers, busy = {}, set(), {}
    for process in stack.job_processes():
        with suppress(psutil.NoSuchProcess), process.oneshot():  # some of them live for a moment only
            parents[process] = process.ppid()
            busy[process] = process.cpu_times().user
            if "forkserver" in " ".join(process.cmdline()):
                fork_servers.add(process.pid)
    return max((process for process in busy if parents[process] in fork_servers), key=lambda process: busy[process])


def test_web_killed_during_metrics_loses_and_doubles_nothing(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=150)
    stack.wait_for_step(job_id, 5)
    for _ in range(2):
        before = stack.identity("web")
        stack.kill("web")
        stack.wait_for_restart("web", before)
        stack.get("/jobs", limit=1)
    assert_whole(stack, job_id, 150)


def test_worker_killed_during_dispatch_starts_the_job_exactly_once(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=10)
    before = stack.identity("worker")
    stack.kill("worker")
    stack.wait_for_restart("worker", before)
    assert_whole(stack, job_id, 10)


def test_worker_killed_during_training_leaves_the_job_alone(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=100)
    stack.wait_for_step(job_id, 3)
    trainers = {process.pid for process in stack.job_processes()}
    assert trainers
    before = stack.identity("worker")
    stack.kill("worker")
    assert trainers <= {process.pid for process in stack.job_processes()}
    stack.wait_for_restart("worker", before)
    assert_whole(stack, job_id, 100)


def test_worker_killed_while_it_finalises_still_ends_the_job_once(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=10)
    wait_until(
        lambda: (
            (stack.job(job_id)["progress"] or {}).get("phase") == "export" or stack.job(job_id)["status"] == "succeeded"
        ),
        "the job exports its model",
        180,
    )
    before = stack.identity("worker")
    stack.kill("worker")
    stack.wait_for_restart("worker", before)
    assert_whole(stack, job_id, 10)
    types = [event["type"] for event in stack.get(f"/jobs/{job_id}/events", limit=200)["items"]]
    assert types.count("job.submitted") == 1


def test_object_store_away_during_checkpoints_only_delays_them(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=60)
    stack.wait_for_step(job_id, 5)
    stack.suspend("object-store")
    back = threading.Timer(OUTAGE_SECONDS, stack.resume, ["object-store"])
    back.start()
    back.join()
    assert_whole(stack, job_id, 60)
    assert stack.get(f"/jobs/{job_id}/checkpoints")["items"]


def test_a_killed_trainer_process_resumes_in_place(stack, tmp_path: Path) -> None:
    job_id = stack.submit(tmp_path, steps=80)
    stack.wait_for_step(job_id, 25)
    os.kill(a_trainer(stack).pid, signal.SIGKILL)
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["reason"]
    assert stack.steps_of(job_id) == list(range(1, 81))


def test_everything_killed_at_once_keeps_what_was_recorded(stack, tmp_path: Path) -> None:
    finished = stack.submit(tmp_path, steps=5)
    assert stack.wait_for_end(finished)["status"] == "succeeded"
    running = stack.submit(tmp_path, steps=80)
    stack.wait_for_step(running, 15)
    token = stack.token
    stack.kill_everything()
    stack.up()
    assert stack.token == token
    assert stack.job(finished)["status"] == "succeeded"
    assert stack.steps_of(finished) == [1, 2, 3, 4, 5]
    assert stack.json("download", finished, "--output", str(tmp_path / "model"))["files"]
    job = stack.wait_for_end(running, 300)
    assert job["status"] == "succeeded", job["reason"]
    assert stack.steps_of(running) == list(range(1, 81))
