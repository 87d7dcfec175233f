"""Run with a private stack's environment: rows that no request makes. Prints what the benchmark needs, as JSON."""

import argparse
import json
import sys

import django


def attempts(count: int) -> list[dict[str, str]]:
    """As if so many queued jobs had been given to a backend: each with its attempt and the attempt's token."""
    from athanor.core import ids
    from athanor.dispatch import tokens
    from athanor.jobs.models import Attempt, Job
    from athanor.jobs.states import AttemptStatus

    made = []
    for job in Job.objects.filter(attempts=None).order_by("id")[:count]:
        name = ids.attempt_id()
        Attempt.objects.create(id=name, job=job, number=1, backend_name=name, status=AttemptStatus.SUBMITTED.value)
        made.append({"job": job.id, "attempt": name, "token": tokens.issue(name)})
    return made


def running() -> list[dict[str, str]]:
    """The attempts that a simulated cluster runs, each with a token."""
    from athanor.dispatch import tokens
    from athanor.jobs.models import Attempt
    from athanor.jobs.states import AttemptStatus

    found = Attempt.objects.filter(status=AttemptStatus.SUBMITTED.value).order_by("id")
    return [{"job": each.job_id, "attempt": each.id, "token": tokens.issue(each.id)} for each in found]


def jobs(count: int) -> None:
    """So many jobs like the first that has an attempt (tests/many_jobs.py)."""
    from athanor.jobs.models import Attempt
    from tests import many_jobs

    many_jobs.fill(Attempt.objects.order_by("id")[0], count)
    many_jobs.settle()


def simulated_cluster(name: str, nodes: int, slots: int) -> None:
    """A cluster within the worker, whose jobs never end. More jobs than its slots wait in the queue."""
    from athanor.clusters.models import Cluster, Pool

    cluster = Cluster.objects.create(name=name, kind="fake", config={"world": name})
    Pool.objects.create(cluster=cluster, name="cpu", nodes=nodes, slots_per_node=slots, memory_bytes=1 << 40)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--attempts", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--simulated-slots", type=int, default=0)
    parser.add_argument("--simulated-nodes", type=int, default=0)
    parser.add_argument("--running", action="store_true")
    options = parser.parse_args()
    django.setup()
    if options.simulated_slots:
        simulated_cluster("bench", 1, options.simulated_slots)
    if options.simulated_nodes:
        simulated_cluster(f"nodes-{options.simulated_nodes}", options.simulated_nodes, 1)
    json.dump(running() if options.running else attempts(options.attempts), sys.stdout)
    if options.jobs:
        jobs(options.jobs)
