"""Submits a second and their latency with 1, 8 and 32 clients, against the same insert in bare Django.

Ours: authentication, tenancy, validation, fit, quota of keys, job, event, idempotency record and audit record in one
transaction. Bare: one row. Both by two processes behind one socket on the same database, taken in turn.

The Celery worker is suspended meanwhile: the jobs would start to train and the figure would be theirs.
"""

import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from deploy.local.environment import REPOSITORY
from deploy.local.handle import StackHandle, wait_until
from tests.bench.platform_stack import private_stack, small_job

CLIENTS = (1, 8, 32)
SECONDS = 6.0
PROCESSES = 2
AIM = {"per_second": 150, "p99_ms": 250}


def measure() -> dict[str, Any]:
    body = json.dumps(small_job()).encode()
    figures: dict[str, Any] = {"aim": AIM, "cores": os.cpu_count(), "rows": []}
    with private_stack() as stack:
        stack.suspend("worker")
        try:
            with bare(stack) as bare_url:
                token = {"Authorization": f"Bearer {stack.credentials['token']}"}
                ours_url = stack.credentials["url"]
                drive(ours_url, 8, body, token, seconds=2.0)  # warm
                drive(bare_url, 8, body, {}, seconds=1.0)
                for clients in CLIENTS:
                    ours = drive(ours_url, clients, body, token)
                    without = drive(bare_url, clients, body, {})
                    figures["rows"].append({"clients": clients, "ours": ours, "bare": without})
        finally:
            stack.resume("worker")
    return figures


def drive(url: str, clients: int, body: bytes, headers: dict[str, str], seconds: float = SECONDS) -> dict[str, float]:
    """Submit from `clients` concurrent clients for `seconds`. Return the submits per second, and p50 and p99 in ms."""
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(clients) as pool:
        parts = list(pool.map(lambda _: _submit_until(url, body, headers, end), range(clients)))
    latencies = sorted(latency for part in parts for latency in part)
    return {
        "per_second": len(latencies) / seconds,
        "p50_ms": statistics.median(latencies) * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
    }


def _submit_until(url: str, body: bytes, headers: dict[str, str], end: float) -> list[float]:
    # http.client rather than a richer one: the load must not take the cores from what it measures.
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    latencies = []
    while time.monotonic() < end:
        key = {"Idempotency-Key": str(uuid.uuid4()), "Content-Type": "application/json", **headers}
        began = time.perf_counter()
        connection.request("POST", "/api/v1/jobs", body, key)
        answer = connection.getresponse()
        said = answer.read()
        latencies.append(time.perf_counter() - began)
        if answer.status != http.HTTPStatus.CREATED:
            raise RuntimeError(f"{url} answered {answer.status}: {said[:200]!r}")
    connection.close()
    return latencies


@contextmanager
def bare(stack: StackHandle) -> Iterator[str]:
    """The bare server on the stack's database, as many processes as ours."""
    lines = dict(line.removeprefix("export ").split("=", 1) for line in stack.run("env").stdout.splitlines())
    environment = {
        **stack.environment,
        "DATABASE_URL": lines["ATHANOR_MIGRATION_DATABASE_URL"].strip("'\""),
        "PYTHONPATH": str(REPOSITORY),
    }
    module = [sys.executable, "-m"]
    subprocess.run([*module, "tests.bench.bare_django"], cwd=REPOSITORY, env=environment, check=True)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as deploy.local.ports does for ours
        listening.listen(512)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        command = [
            *module, "uvicorn", "tests.bench.bare_django:application", f"--fd={listening.fileno()}",
            "--no-access-log", "--log-level=warning",
        ]  # fmt: skip
        servers = [
            subprocess.Popen(command, cwd=REPOSITORY, env=environment, pass_fds=(listening.fileno(),))
            for _ in range(PROCESSES)
        ]
        try:
            wait_until(_answers(url), "the bare server answers")
            yield url
        finally:
            for server in servers:
                server.send_signal(signal.SIGTERM)
            for server in servers:
                server.wait(20)


def _answers(url: str) -> Callable[[], bool]:
    def ask() -> bool:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
        try:
            connection.request("GET", "/nothing")
            return connection.getresponse().status == http.HTTPStatus.NOT_FOUND
        except OSError:
            return False
        finally:
            connection.close()

    return ask


def lines(figures: dict[str, Any]) -> list[str]:
    aim = figures["aim"]
    table = [
        f"  aim: {aim['per_second']}/s, p99 <= {aim['p99_ms']} ms; {figures['cores']} cores, load generator included",
        "  clients      ours/s   p50    p99  |   bare/s   p50    p99  | ours/bare",
    ]
    for row in figures["rows"]:
        ours, without = row["ours"], row["bare"]
        table.append(
            f"  {row['clients']:>7} {ours['per_second']:>11.0f} {ours['p50_ms']:>5.0f} {ours['p99_ms']:>6.0f}"
            f"  | {without['per_second']:>8.0f} {without['p50_ms']:>5.0f} {without['p99_ms']:>6.0f}"
            f"  | {ours['per_second'] / without['per_second']:.2f}"
        )
    return table


if __name__ == "__main__":
    print("\n".join(lines(measure())))
