"""A private stack for a benchmark, ended with it, and one API client of its first user."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from athanor.core.encryption import new_wrapping_keyset
from deploy.local.environment import REPOSITORY
from deploy.local.handle import StackHandle, wait_until


@contextmanager
def private_stack() -> Iterator[StackHandle]:
    with tempfile.TemporaryDirectory(prefix="athanor-bench-") as folder:
        Path(folder).chmod(0o755)  # under root PostgreSQL runs as another user
        stack = StackHandle(Path(folder) / "data")
        stack.up()
        try:
            yield stack
        finally:
            stack.down()
            for process in stack.job_processes():
                process.kill()


@contextmanager
def stores_alone() -> Iterator[Callable[..., str]]:
    """Private stores without a platform, which would work on the rows too. Yields what runs `python -m` with arguments
    on them, and returns its output."""
    with tempfile.TemporaryDirectory(prefix="athanor-bench-") as folder:
        Path(folder).chmod(0o755)  # under root PostgreSQL runs as another user
        stack = StackHandle(Path(folder) / "data")
        stack.up(only_stores=True)
        known = settings_of(stack)
        environment = {
            **stack.environment,
            **known,
            "DATABASE_URL": known["ATHANOR_MIGRATION_DATABASE_URL"],  # they make their tables themselves
            "ATHANOR_SECRET_KEY": "bench",
            "ATHANOR_MASTER_KEY": new_wrapping_keyset(),
            "DJANGO_SETTINGS_MODULE": "athanor.config.settings",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "platform"), str(REPOSITORY)]),
        }

        def run(*arguments: str) -> str:
            command = [sys.executable, "-m", *arguments]
            done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr[-2000:]}")
            return done.stdout

        try:
            yield run
        finally:
            stack.down()


def api(stack: StackHandle) -> httpx.Client:
    credentials = stack.credentials
    return httpx.Client(
        base_url=f"{credentials['url']}/api/v1",
        headers={"Authorization": f"Bearer {credentials['token']}"},
        timeout=60.0,
    )


def small_job(vocab_size: int = 2048, steps: int = 5) -> dict[str, object]:
    """The demo's model for a few steps. Another vocabulary is another preparation of the data."""
    return {
        "version": 1,
        "name": "bench",
        "resources": {"processes_per_node": 2, "accelerator": "cpu"},
        "training": {
            "model": {"preset": "llama-1m"},
            "data": {"source": "builtin:python-stdlib"},
            "tokenizer": {"vocab_size": vocab_size},
            "steps": steps,
            "tokens_per_step": 2048,
            "sequence_length": 256,
            "schedule": {"warmup_steps": 1},
            "evaluation": {"every_steps": 1000, "sequences": 1},
        },
    }


def settings_of(stack: StackHandle) -> dict[str, str]:
    """The environment in which the stack's own programs run."""
    pairs = (shlex.split(line)[-1].partition("=") for line in stack.run("env").stdout.splitlines())
    return {name: value for name, _, value in pairs}


def simulate_cluster(stack: StackHandle, slots: int) -> None:
    """Add a cluster named `bench` whose jobs never end. See bench_rows.py."""
    _run_bench_rows(stack, "--simulated-slots", str(slots))


def simulated_job() -> dict[str, Any]:
    """A job of that cluster; it takes two slots."""
    job = small_job()
    return {**job, "resources": {"processes_per_node": 2, "accelerator": "cpu", "cluster": "bench"}}


def started(stack: StackHandle) -> int:
    """Return how many jobs that cluster has."""
    with api(stack) as client:
        found = client.get("/jobs", params={"status": "starting,running", "limit": 200})
    return len(found.raise_for_status().json()["items"])


def simulated_attempts(stack: StackHandle, count: int) -> list[dict[str, str]]:
    """Attempts that a simulated cluster runs while all services work: job, attempt, token."""
    simulate_cluster(stack, 2 * count)
    with api(stack) as client:
        for _ in range(count):
            headers = {"Idempotency-Key": str(uuid.uuid4())}
            client.post("/jobs", json=simulated_job(), headers=headers).raise_for_status()
    wait_until(lambda: started(stack) == count, "the simulated cluster runs all jobs")
    rows: list[dict[str, str]] = json.loads(_run_bench_rows(stack, "--running"))
    assert len(rows) == count, len(rows)
    return rows


def multi_node_attempt(stack: StackHandle, nodes: int) -> str:
    """Return the token of an attempt of so many nodes of one slot each, which a simulated cluster runs."""
    _run_bench_rows(stack, "--simulated-nodes", str(nodes))
    job = small_job()
    training = {**job["training"], "tokens_per_step": 256 * nodes}  # type: ignore[dict-item] # a mapping
    resources = {"nodes": nodes, "processes_per_node": 1, "accelerator": "cpu", "cluster": f"nodes-{nodes}"}
    with api(stack) as client:
        made = client.post("/jobs", json={**job, "training": training, "resources": resources}).raise_for_status()
        path = f"/jobs/{made.json()['id']}"
        wait_until(lambda: client.get(path).json()["status"] == "starting", "the simulated cluster runs the job")
    rows = json.loads(_run_bench_rows(stack, "--running"))
    return next(str(row["token"]) for row in rows if row["job"] == made.json()["id"])


def made_attempts(stack: StackHandle, count: int, jobs: int = 0) -> list[dict[str, str]]:
    """Attempts of queued jobs that no backend ever sees: job, attempt, token; and more jobs. See bench_rows.py."""
    rows: list[dict[str, str]] = json.loads(_run_bench_rows(stack, "--attempts", str(count), "--jobs", str(jobs)))
    return rows


def _run_bench_rows(stack: StackHandle, *arguments: str) -> str:
    command = [sys.executable, "-m", "tests.bench.bench_rows", *arguments]
    path = os.pathsep.join([str(REPOSITORY / "platform"), str(REPOSITORY)])
    known = settings_of(stack)
    # Only the owner of a table may vacuum it.
    known["DATABASE_URL"] = known["ATHANOR_MIGRATION_DATABASE_URL"]
    environment = {**os.environ, **known, "DJANGO_SETTINGS_MODULE": "athanor.config.settings"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"no rows were made: {done.stderr[-2000:]}")
    return done.stdout


def processor_seconds(stack: StackHandle, services: tuple[str, ...] = ("web", "postgres")) -> float:
    """Return the CPU seconds that web and PostgreSQL have used, which other load on the machine changes little.

    `services`: beginnings of the names of other services. Of processes that have ended, their parents know.
    """
    total = 0.0
    for name in stack.state["services"]:
        process = stack.identity(name).process() if name.startswith(services) else None
        for one in [process, *process.children(recursive=True)] if process else []:
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
