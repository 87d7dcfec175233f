"""The Slurm backend on a real Slurm of four nodes on this host: submitting, seeing an end, observing many."""

import shlex
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from statistics import quantiles
from typing import Any

from athanor.backends.base import Handle, Presence
from athanor.backends.plan import LaunchPlan, backend_name
from athanor.backends.slurm.backend import SlurmBackend
from athanor.core import task_triggers
from athanor.reconcilers.registry import RECONCILERS
from deploy.local.handle import wait_until
from tests.slurm.cluster import SlurmCluster, missing, slurm_cluster

JOBS = 1000
MANY = 5000
ENDING = 60
SWEEP_SECONDS = next(reconciler.seconds for reconciler in RECONCILERS if reconciler.task == task_triggers.OBSERVE)
# Ends after a while of its own, and notes when.
PROGRAM = """
import os, random, sys, time
time.sleep(2 + 6 * random.random())
open(os.path.join(sys.argv[1], os.environ["BENCH_NAME"]), "w").write(repr(time.time()))
"""


def measure() -> dict[str, Any]:
    why = missing()
    if why:
        return {"left_out": why}
    figures: dict[str, Any] = {}
    with slurm_cluster() as cluster:
        figures["ends"] = ends(cluster)
        cluster.clear()
        cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")  # what is submitted waits
        figures["sbatch_loop"] = sbatch_loop(cluster)
        figures["commands"] = submits(cluster, SlurmBackend(**cluster.config()))
        with cluster.rest() as url:
            rest = SlurmBackend(**cluster.config(transport={"kind": "rest", "url": url, "user": "root"}))
            figures["slurmrestd"] = submits(cluster, rest, JOBS // 10)
        figures["observation"] = observation(cluster)
        cluster.run("scancel", "--user=root")
    return figures


def plan(number: int, **environment: str) -> LaunchPlan:
    identifier = f"att_{time.time_ns():x}{number:05d}"
    return LaunchPlan(
        attempt_id=identifier, backend_name=backend_name(identifier), nodes=1, processes_per_node=1, accelerator="cpu",
        time_limit_seconds=3600, environment={"ATHANOR_AGENT_URL": "http://127.0.0.1:1", **environment},
        secrets={"ATHANOR_ATTEMPT_TOKEN": "secret"}, memory_bytes_per_node=100 * 1024**2,
    )  # fmt: skip


def submits(cluster: SlurmCluster, backend: SlurmBackend, count: int = JOBS) -> dict[str, Any]:
    """One after the other, as one worker does; each first looks whether there is such a job already."""
    submissions = [backend.render(plan(number)) for number in range(count)]
    began = time.monotonic()
    for submission in submissions:
        backend.submit(submission)
    seconds = time.monotonic() - began
    for submission in submissions[::10]:  # as after answers that were lost
        backend.submit(submission)
    there = Counter(cluster.run("squeue", "-h", "-o", "%j").split())
    names = [submission.backend_name for submission in submissions]
    return {
        "jobs": count,
        "per_second": count / seconds,
        "doubled": sum(there[name] > 1 for name in names),
        "lost": sum(there[name] == 0 for name in names),
    }


def sbatch_loop(cluster: SlurmCluster) -> dict[str, Any]:
    """The same number by a shell's loop, with the same script for all."""
    script = cluster.folder / "by_hand.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=1 --mem=100M --time=65 --no-requeue --output=/dev/null\nexit 0\n")
    began = time.monotonic()
    loop = f"for i in $(seq {JOBS}); do sbatch --parsable {shlex.quote(str(script))} >/dev/null || exit 1; done"
    subprocess.run(["sh", "-c", loop], env=cluster.environment, check=True)
    return {"jobs": JOBS, "per_second": JOBS / (time.monotonic() - began)}


def ends(cluster: SlurmCluster) -> dict[str, Any]:
    """From the moment that a program ends until a sweep says so; sweeps come as often as the platform's."""
    backend_folder = Path(tempfile.mkdtemp(dir=cluster.folder))
    backend = SlurmBackend(**cluster.config(command=[sys.executable, "-c", PROGRAM, str(backend_folder)]))
    handles = []
    for number in range(ENDING):
        asked = plan(number)
        asked.environment["BENCH_NAME"] = asked.backend_name
        handles.append(backend.submit(backend.render(asked)))
    seen: dict[Handle, float] = {}
    while len(seen) < ENDING:
        began = time.monotonic()
        answers = backend.observe([handle for handle in handles if handle not in seen])
        now = time.time()
        seen.update({h: now for h, answer in answers.items() if answer.presence is Presence.FINISHED})
        time.sleep(max(SWEEP_SECONDS - (time.monotonic() - began), 0.0))
    late = [at - float((backend_folder / handle.backend_name).read_text()) for handle, at in seen.items()]
    return {
        "jobs": ENDING,
        "sweep_seconds": SWEEP_SECONDS,
        "p50": quantiles(late, n=100)[49],
        "p95": quantiles(late, n=100)[94],
    }


def observation(cluster: SlurmCluster) -> dict[str, Any]:
    """All jobs of a cluster that holds MANY, by one call. Most were made by a loop: sbatch needs its time for each."""
    there = len(cluster.run("squeue", "-h", "-o", "%A").split())
    names = [plan(number).backend_name for number in range(max(MANY - there, 0))]
    listed = cluster.folder / "names"
    listed.write_text("\n".join(names) + "\n")
    script = shlex.quote(str(cluster.folder / "by_hand.sh"))
    loop = f'while read -r name; do sbatch --job-name="$name" {script} >/dev/null || exit 1; done <{listed}'
    subprocess.run(["sh", "-c", loop], env=cluster.environment, check=True)
    wait_until(lambda: len(cluster.run("squeue", "-h", "-o", "%A").split()) >= MANY, "they are there", 60)
    ours = [name for name in cluster.run("squeue", "-h", "-o", "%j").split() if name.startswith("athanor-")]
    backend = SlurmBackend(**cluster.config())
    handles = [Handle(name) for name in ours]
    began = time.monotonic()
    answers = backend.observe(handles)
    seconds = time.monotonic() - began
    assert all(answer.presence is Presence.PRESENT for answer in answers.values())
    some = handles[:100]
    tracemalloc.start()
    backend.observe(some)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"jobs": MANY, "asked_for": len(handles), "seconds": seconds, "peak_bytes_of_100": peak}


def lines(figures: dict[str, Any]) -> list[str]:
    if "left_out" in figures:
        return [f"left out: {figures['left_out']}"]
    loop, seen, many = figures["sbatch_loop"], figures["ends"], figures["observation"]
    found = [f"sbatch in a loop            {loop['per_second']:7.1f} jobs/s"]
    for kind in ("commands", "slurmrestd"):
        of = figures[kind]
        counts = f"{of['doubled']} doubled, {of['lost']} lost of {of['jobs']}"
        found.append(f"submitted, {kind:<10}       {of['per_second']:7.1f} jobs/s  {counts}")
    after = f"p50 {seen['p50']:.2f} s, p95 {seen['p95']:.2f} s (a sweep each {seen['sweep_seconds']:.0f} s)"
    found.append(f"an end is seen after        {after}")
    found.append(
        f"{many['asked_for']} of {many['jobs']} jobs observed  {many['seconds']:.2f} s by one call;"
        f" 100 of them with {many['peak_bytes_of_100'] / 1024:.0f} KiB"
    )
    return found


if __name__ == "__main__":
    print("\n".join(lines(measure())))
