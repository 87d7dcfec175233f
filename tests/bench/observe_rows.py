"""Run with a private stack's environment: `make N` live attempts, then `sweep` over them in a process of its own, so
that its memory is the sweep's alone. Prints figures as JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import django

STATUS = Path("/proc/self/status")
BATCH = 5000


def measure() -> dict[str, Any]:
    from athanor.backends.fake.backend import WORLDS, World
    from athanor.dispatch import observe
    from athanor.jobs.models import Attempt

    world = WORLDS.setdefault("bench", World())
    names = list(Attempt.objects.values_list("backend_name", flat=True))
    count = len(names)
    world.running = dict.fromkeys(names)  # type: ignore[arg-type] # what was submitted is of no interest here
    figures: dict[str, Any] = {"attempts": count, "batch": observe.BATCH}
    figures["first"] = sweep("the backend's word for each is new")
    figures["quiet"] = sweep("nothing has changed")
    for name in names[:500]:
        world.finish(name, 1)
    figures["ends"] = sweep("500 have ended")
    world.empty_listings = count // observe.BATCH + 1
    figures["empty"] = sweep("the listing is empty")
    figures["ended"] = Attempt.objects.filter(status="ended").count()
    return figures


def make_rows(count: int) -> None:
    """As if so many jobs ran on one cluster, each heard of just now."""
    from django.core.management import call_command
    from django.db import connection
    from django.utils import timezone

    from athanor.accounts.models import Team, User
    from athanor.backends.plan import backend_name
    from athanor.clusters.models import Cluster, Pool
    from athanor.core import ids
    from athanor.jobs.models import Attempt, Job
    from athanor.jobs.states import AttemptStatus, JobStatus
    from athanor.specs.validation import parse_spec
    from athanor.telemetry.models import Heartbeat
    from tests.bench.platform_stack import small_job

    call_command("migrate", "--no-input", verbosity=0)
    team, user = Team.objects.create(name="bench"), User.objects.create(username="bench")
    cluster = Cluster.objects.create(name="bench", kind="fake", config={"world": "bench"})
    pool = Pool.objects.create(cluster=cluster, name="cpu", slots_per_node=count, memory_bytes=1 << 40)
    spec = parse_spec(small_job()).model_dump(mode="json")
    now = timezone.now()
    for start in range(0, count, BATCH):
        jobs = [
            Job(
                team=team, created_by=user, name="bench", project="bench", spec=spec, resolved_spec=spec,
                spec_digest="", pool=pool, slots=1, dataset_id="", status=JobStatus.RUNNING.value,
            )
            for _ in range(min(BATCH, count - start))
        ]  # fmt: skip
        Job.objects.bulk_create(jobs)
        attempts = [
            Attempt(
                id=(attempt_id := ids.attempt_id()), job=job, number=1, backend_name=backend_name(attempt_id),
                status=AttemptStatus.RUNNING.value, submitted_at=now, started_at=now,
            )
            for job in jobs
        ]  # fmt: skip
        Attempt.objects.bulk_create(attempts)
        Heartbeat.objects.bulk_create(
            Heartbeat(
                attempt=attempt, node_rank=0, generation=0, phase="training", step=1, processes_alive=1, received_at=now
            )
            for attempt in attempts
        )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def sweep(what: str) -> dict[str, Any]:
    from athanor.clusters.models import Cluster
    from athanor.dispatch import observe

    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # reset the kernel's record of peak memory
    began, processor = time.monotonic(), time.process_time()
    observe.observe_due()
    seconds = time.monotonic() - began
    assert Cluster.objects.get().lease_token is None, "the sweep did not come to its end"
    return {
        "what": what,
        "seconds": seconds,
        "processor_seconds": time.process_time() - processor,
        "peak_above_mb": memory_mb("VmHWM") - before,
        "peak_mb": memory_mb("VmHWM"),
    }


def memory_mb(name: str) -> float:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("make", type=int, nargs="?", help="how many; without it, sweep over those that there are")
    options = parser.parse_args()
    django.setup()
    if options.make:
        make_rows(options.make)
    else:
        json.dump(measure(), sys.stdout)
