"""Submits a second, their latency and their CPU with 1, 8 and 32 clients, against a usual API view and a bare row.

Ours: authentication, tenancy, validation, fit, quota of keys, job, event, idempotency record and audit record in one
transaction. The alternatives are those of bare_django.py: a view of Django REST framework that writes two rows, and a
view that writes one. All by two processes behind one socket on the same database, taken in turn.

All services run, as for every user: the worker admits jobs, starts them, observes them and publishes their events. The
jobs are those of a simulated cluster that is soon full, so that no training shares the cores; the others wait.
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

import psutil

from deploy.local.environment import REPOSITORY
from deploy.local.handle import StackHandle, wait_until
from tests.bench.platform_stack import private_stack, processor_seconds, simulate_cluster, simulated_job, started

CLIENTS = (1, 8, 32)
SECONDS = 6.0
ROUNDS = 3
PROCESSES = 2
SIMULATED_SLOTS = 64  # 32 jobs run
REFERENCE_TOKEN = "reference"  # of the alternatives (bare_django.py)
AIM = {"per_second": 150, "p99_ms": 250, "cpu_of_drf": 2.0}
Figures = dict[str, float]


def measure() -> dict[str, Any]:
    content = json.dumps(simulated_job()).encode()
    figures: dict[str, Any] = {"aim": AIM, "cores": os.cpu_count(), "rows": []}
    with private_stack() as stack:
        simulate_cluster(stack, SIMULATED_SLOTS)
        token = str(stack.credentials["token"])
        with bare(stack) as (bare_url, servers):

            def ours(clients: int, seconds: float = SECONDS) -> Figures:
                target = (f"{stack.credentials['url']}/api/v1/jobs", token)
                return drive(target, clients, content, seconds, lambda: processor_seconds(stack))

            def reference(path: str, clients: int, seconds: float = SECONDS) -> Figures:
                target = (f"{bare_url}/{path}", REFERENCE_TOKEN)
                used = lambda: processor_seconds(stack, ("postgres",)) + sum(map(_cpu_seconds, servers))  # noqa: E731
                return drive(target, clients, content, seconds, used)

            ours(8, 2.0)  # warm
            reference("drf", 8, 1.0)
            reference("row", 8, 1.0)
            wait_until(lambda: started(stack) * 2 == SIMULATED_SLOTS, "the simulated cluster is full")
            for clients in CLIENTS:
                rounds = [
                    {"ours": ours(clients), "drf": reference("drf", clients), "row": reference("row", clients)}
                    for _ in range(ROUNDS)
                ]
                figures["rows"].append(
                    {
                        "clients": clients,
                        "load": os.getloadavg()[0],
                        **{name: _medians(rounds, name) for name in AGAINST},
                    }
                )
    return figures


AGAINST = ("ours", "drf", "row")


def drive(target: tuple[str, str], clients: int, body: bytes, seconds: float, used: Callable[[], float]) -> Figures:
    """Submit from `clients` concurrent clients for `seconds` to `target`, an address and a token.

    Returns the submits per second, p50 and p99 in ms, and the CPU milliseconds a submit;
    `used` returns the CPU seconds since some time.
    """
    end, before = time.monotonic() + seconds, used()
    with ThreadPoolExecutor(clients) as pool:
        parts = list(pool.map(lambda _: _submit_until(target, body, end), range(clients)))
    cpu = used() - before
    latencies = sorted(latency for part in parts for latency in part)
    return {
        "per_second": len(latencies) / seconds,
        "p50_ms": statistics.median(latencies) * 1e3,
        "p99_ms": latencies[int(len(latencies) * 0.99)] * 1e3,
        "cpu_ms": cpu / len(latencies) * 1e3,
    }


def _medians(rounds: list[dict[str, Figures]], name: str) -> Figures:
    found = [each[name] for each in rounds]
    return {figure: statistics.median(each[figure] for each in found) for figure in found[0]}


def _submit_until(target: tuple[str, str], body: bytes, end: float) -> list[float]:
    # http.client rather than a richer one: the load must not take the cores from what it measures.
    url, token = target
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    latencies = []
    while time.monotonic() < end:
        began = time.perf_counter()
        connection.request("POST", urlsplit(url).path, body, {**headers, "Idempotency-Key": str(uuid.uuid4())})
        answer = connection.getresponse()
        said = answer.read()
        latencies.append(time.perf_counter() - began)
        if answer.status != http.HTTPStatus.CREATED:
            raise RuntimeError(f"{url} answered {answer.status}: {said[:200]!r}")
    connection.close()
    return latencies


def _cpu_seconds(server: subprocess.Popen[bytes]) -> float:
    times = psutil.Process(server.pid).cpu_times()
    return times.user + times.system


@contextmanager
def bare(stack: StackHandle) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The alternatives' server on the stack's database, as many processes as ours; and these processes."""
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
            yield url, servers
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
        f"  all services run; jobs of a full simulated cluster; {figures['cores']} cores, clients included; medians of "
        f"{ROUNDS} rounds taken in turn; CPU: of web and PostgreSQL",
        f"  aim: {aim['per_second']}/s, p99 <= {aim['p99_ms']} ms, CPU <= {aim['cpu_of_drf']} x that of the DRF view",
        f"  clients load {''.join(f'| {name:>4}/s   p50   p99  CPU ms ' for name in AGAINST)}| CPU/DRF",
    ]
    for row in figures["rows"]:
        parts = " | ".join(
            f"{row[name]['per_second']:>6.0f} {row[name]['p50_ms']:>5.0f} {row[name]['p99_ms']:>5.0f} "
            f"{row[name]['cpu_ms']:>7.1f}"
            for name in AGAINST
        )
        ratio = row["ours"]["cpu_ms"] / row["drf"]["cpu_ms"]
        table.append(f"  {row['clients']:>7} {row['load']:>4.1f} | {parts} | {ratio:.1f}")
    return table


if __name__ == "__main__":
    print("\n".join(lines(measure())))
