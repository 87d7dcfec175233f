"""Run with a private stack's environment: jobs that wait in many queues are admitted, and end as soon as they may.

`kueue` is the published performance test of Kueue in numbers (15,000 jobs of three classes, 30 queues of 5 cohorts,
600 slots); time is the test's own, so that only admission's work is measured. `cycles N Q` measures cycles over N jobs
of Q queues. Prints figures as JSON.
"""

import heapq
import json
import statistics
import sys
import time
from typing import Any, NamedTuple

import django

COHORTS, QUEUES_OF_A_COHORT, NOMINAL, BORROW = 5, 6, 20, 100
TOGETHER_SECONDS = 0.2  # ends within this time are observed together, as by a reconciler


class Class(NamedTuple):
    count: int
    slots: int
    seconds: float
    priority: int


CLASSES = (Class(350, 1, 0.2, -10), Class(100, 5, 0.5, 0), Class(50, 20, 1.0, 10))


def kueue() -> dict[str, Any]:
    from athanor.jobs.models import Job
    from athanor.scheduling import services

    make_rows(COHORTS, QUEUES_OF_A_COHORT, CLASSES)
    total = Job.objects.count()
    seconds = {each.slots: each.seconds for each in CLASSES}
    clock, running, ended = 0.0, [], 0
    admitting = 0.0
    began = time.monotonic()
    while ended < total:
        admit_began = time.monotonic()
        services.admit()
        admitting += time.monotonic() - admit_began
        for job_id, slots in Job.objects.filter(status="admitted").values_list("id", "slots"):
            heapq.heappush(running, (clock + seconds[slots], job_id))
        Job.objects.filter(status="admitted").update(status="running")
        if not running:
            raise RuntimeError(f"{total - ended} jobs wait, and nothing runs")
        clock = running[0][0]
        over = []
        while running and running[0][0] <= clock + TOGETHER_SECONDS:
            over.append(heapq.heappop(running)[1])
        Job.objects.filter(pk__in=over).update(status="succeeded")
        ended += len(over)
    took = time.monotonic() - began
    from athanor.scheduling.models import AdmissionCycle

    considered = list(AdmissionCycle.objects.values_list("considered", "seconds"))
    return {
        "jobs": total, "seconds": took, "admitting_seconds": admitting, "admissions_per_second": total / took,
        "cycles": len(considered), "decisions": sum(each[0] for each in considered),
        "decisions_per_second": sum(each[0] for each in considered) / admitting,
    }  # fmt: skip


def cycles(jobs: int, queues: int, rounds: int = 5) -> dict[str, Any]:
    """Full pools, so that each cycle finds nothing to start; the first also writes what every job waits for."""
    from athanor.scheduling import services

    cohorts = queues // 50
    make_rows(cohorts, queues // cohorts, (Class(jobs // queues, 4, 1.0, 0),))
    services.admit()
    times = []
    for _ in range(rounds):
        began = time.monotonic()
        services.admit()
        times.append(time.monotonic() - began)
    return {"jobs": jobs, "queues": queues, "median_seconds": statistics.median(times), "longest_seconds": max(times)}


def make_rows(cohorts: int, queues: int, classes: tuple[Class, ...]) -> None:
    from django.core.management import call_command
    from django.db import connection, transaction

    from athanor.accounts.models import Team, User
    from athanor.clusters.models import Cluster, Pool
    from athanor.core import ids
    from athanor.jobs.models import Job
    from athanor.quotas.models import QuotaGrant, QuotaNode
    from athanor.quotas.services import leaf_of, root
    from athanor.specs.validation import parse_spec
    from tests.bench.platform_stack import small_job

    call_command("migrate", "--no-input", verbosity=0)
    user = User.objects.create(username="bench")
    cluster = Cluster.objects.create(name="bench", kind="fake", config={"world": "bench"})
    slots = cohorts * queues * NOMINAL
    pool = Pool.objects.create(cluster=cluster, name="cpu", slots_per_node=slots, memory_bytes=1 << 40)
    spec = parse_spec(small_job()).model_dump(mode="json")
    rows = []
    with transaction.atomic():
        for cohort in range(cohorts):
            group = QuotaNode.objects.create(parent=root(), name=f"cohort-{cohort}")
            for queue in range(queues):
                team = Team.objects.create(name=f"team-{cohort}-{queue}")
                leaf = leaf_of(team)
                leaf.parent = group
                leaf.save()
                QuotaGrant.objects.create(node=leaf, accelerator="cpu", nominal=NOMINAL, borrow_limit=BORROW)
                for each in classes:
                    rows += [
                        Job(
                            id=ids.job_id(), team=team, created_by=user, name="bench", project="default",
                            priority=each.priority, spec={}, resolved_spec=spec, spec_digest="", pool=pool,
                            slots=each.slots, time_limit_seconds=60, dataset_id="", event_seq=1,
                        )
                        for _ in range(each.count)
                    ]  # fmt: skip
        Job.objects.bulk_create(rows, batch_size=2000)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE jobs_job")


if __name__ == "__main__":
    django.setup()
    figures = kueue() if sys.argv[1] == "kueue" else cycles(int(sys.argv[2]), int(sys.argv[3]))
    json.dump(figures, sys.stdout)
