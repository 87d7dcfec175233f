"""Healthy requests while 500 connections are slow on purpose (bodies, headers, reading answers). Aim: p99 below twice
that of a quiet server. Rounds with and without them take turns, and the workers run.
"""

import http.client
import subprocess
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from deploy.local.environment import REPOSITORY
from tests.bench.platform_stack import private_stack

CONNECTIONS = 500
ROUNDS = 3
REQUESTS = 200
ATTACK_SECONDS = 120
PATHS = {"health check": "/healthz", "list of jobs": "/api/v1/jobs?limit=50"}


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        url, token = str(stack.credentials["url"]), str(stack.credentials["token"])
        times: dict[str, dict[str, list[float]]] = {name: {"quiet": [], "attacked": []} for name in PATHS}
        _measure_round(url, token, {name: {"quiet": []} for name in PATHS}, "quiet")  # warm-up
        for _ in range(ROUNDS):
            _measure_round(url, token, times, "quiet")
            command = [
                sys.executable, "-m", "tests.slow_clients", url,
                "--count", str(CONNECTIONS), "--seconds", str(ATTACK_SECONDS),
            ]  # fmt: skip
            with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as attack:
                assert attack.stdout is not None
                assert attack.stdout.readline() == "open\n"
                try:
                    _measure_round(url, token, times, "attacked")
                finally:
                    attack.terminate()
        return {name: {kind: _summary(values) for kind, values in found.items()} for name, found in times.items()}


def _measure_round(url: str, token: str, times: dict[str, dict[str, list[float]]], kind: str) -> None:
    """Every other request on a new connection: those are what a crowded server takes last."""
    parts = urlsplit(url)
    reused = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    for number in range(REQUESTS):
        for name, path in PATHS.items():
            began = time.perf_counter()
            fresh = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
            connection = reused if number % 2 else fresh
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            times[name][kind].append(time.perf_counter() - began)
            fresh.close()
            assert answer.status == http.HTTPStatus.OK, answer.status
    reused.close()


def _summary(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50_ms": ordered[len(ordered) // 2] * 1000, "p99_ms": ordered[int(len(ordered) * 0.99)] * 1000}


def lines(figures: dict[str, Any]) -> list[str]:
    shown = [f"  with {CONNECTIONS} slow connections against without, p50 and p99 (aim p99 below 2x)"]
    for name, found in figures.items():
        quiet, attacked = found["quiet"], found["attacked"]
        parts = [
            f"{which} {quiet[key]:.1f} -> {attacked[key]:.1f} ms ({attacked[key] / quiet[key]:.2f}x)"
            for which, key in (("p50", "p50_ms"), ("p99", "p99_ms"))
        ]
        shown.append(f"  {name}: {', '.join(parts)}")
    return shown


if __name__ == "__main__":
    print("\n".join(lines(measure())))
