"""A thousand followers of streams: how soon an event reaches each, and what they cost the web processes.

Aims: p95 <= 1 s from the event's own time to its arrival, at most 200 MB more. Half of the followers follow the team,
half one job each of twenty-five. Fifty service accounts share them, since one user may have twenty in a process.
Everything, the followers too, is on this machine, and all services run. The jobs wait for a simulated cluster that is
full; pausing and resuming them makes the events.
"""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import httpx

from deploy.local.handle import StackHandle
from tests.bench.platform_stack import api, private_stack, simulated_attempts, simulated_job

FOLLOWERS = 1000
OF_ONE_USER = 20
JOBS = 25
EVENTS = 150
EVENTS_PER_SECOND = 10.0
AT_ONCE = 50
DRAIN_SECONDS = 5.0


@dataclass
class Arrivals:
    seconds: list[float] = field(default_factory=list)
    connected: int = 0


async def _follow(address: Any, path: str, token: str, seen: Arrivals, gate: asyncio.Semaphore) -> None:
    """One follower, as plain as can be: the client must not be what is measured."""
    async with gate:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(
            f"GET /api/v1{path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head.split(b"\r\n")[0], head
        seen.connected += 1
    try:
        while line := await reader.readline():
            if line.startswith(b"data: ") and b'"type":"job.' in line and b"_requested" in line:
                now = time.time()
                sent = datetime.fromisoformat(json.loads(line[6:])["time"]).timestamp()
                seen.seconds.append(now - sent)
    finally:
        writer.close()


async def _measure(stack: StackHandle, jobs: list[str], tokens: list[str]) -> tuple[Arrivals, float]:
    address = urlsplit(stack.credentials["url"])
    seen, gate = Arrivals(), asyncio.Semaphore(AT_ONCE)
    began = time.monotonic()
    paths = ["/events" if n % 2 else f"/jobs/{jobs[n // 2 % JOBS]}/events?after=1" for n in range(FOLLOWERS)]
    tasks = [
        asyncio.create_task(_follow(address, path, tokens[number // OF_ONE_USER], seen, gate))
        for number, path in enumerate(paths)
    ]
    while seen.connected < FOLLOWERS:
        await asyncio.sleep(0.05)
        for task in tasks:
            if task.done():
                task.result()
    connecting = time.monotonic() - began
    await asyncio.to_thread(_make_events, stack, jobs)
    expected = EVENTS * (FOLLOWERS // 2) + EVENTS * (FOLLOWERS // 2) // JOBS
    give_up_at = time.monotonic() + DRAIN_SECONDS
    while len(seen.seconds) < expected and time.monotonic() < give_up_at:
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(seen.seconds) == expected, f"{len(seen.seconds)} of {expected} events arrived"
    return seen, connecting


def _make_events(stack: StackHandle, jobs: list[str]) -> None:
    with api(stack) as client:
        began = time.monotonic()
        for number in range(EVENTS):
            action = "resume" if number // JOBS % 2 else "pause"
            client.post(f"/jobs/{jobs[number % JOBS]}:{action}").raise_for_status()
            time.sleep(max(0.0, began + (number + 1) / EVENTS_PER_SECOND - time.monotonic()))


def _memory_mb(stack: StackHandle) -> float:
    services = json.loads(stack.run("status", "--json").stdout)["services"]
    return sum(entry["memory_bytes"] for name, entry in services.items() if name.startswith("web")) / 1e6


def _warm_up(stack: StackHandle) -> None:
    """Both processes have all their threads and connections before the first reading."""
    with api(stack) as client, ThreadPoolExecutor(32) as pool:
        for answer in pool.map(client.get, ["/jobs"] * 400):
            answer.raise_for_status()


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        simulated_attempts(stack, 1)  # it fills the cluster
        with api(stack) as client:
            jobs = [_submit(client) for _ in range(JOBS)]
            tokens = _tokens(client)
        _warm_up(stack)
        before = _memory_mb(stack)
        figures: dict[str, Any] = {}

        async def run() -> tuple[Arrivals, float]:
            reading = asyncio.create_task(_read_memory(stack, figures))
            try:
                return await _measure(stack, jobs, tokens)
            finally:
                reading.cancel()

        seen, connecting = asyncio.run(run())
    ordered = sorted(seen.seconds)
    return {
        "followers": FOLLOWERS,
        "deliveries": len(ordered),
        "connecting_seconds": connecting,
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p95_ms": ordered[int(len(ordered) * 0.95)] * 1e3,
        "max_ms": ordered[-1] * 1e3,
        "more_mb": figures["highest_mb"] - before,
        "aim": {"p95_ms": 1000, "more_mb": 200},
    }


async def _read_memory(stack: StackHandle, figures: dict[str, Any]) -> None:
    while True:
        reading = await asyncio.to_thread(_memory_mb, stack)
        figures["highest_mb"] = max(figures.get("highest_mb", 0.0), reading)
        await asyncio.sleep(5.0)


def _tokens(client: httpx.Client) -> list[str]:
    """Of as many service accounts as share the followers."""
    team = client.get("/teams").raise_for_status().json()["items"][0]["id"]
    found = []
    for number in range(-(-FOLLOWERS // OF_ONE_USER)):
        asked = {"name": f"follower-{number}", "role": "viewer"}
        account = client.post(f"/teams/{team}/service-accounts", json=asked).raise_for_status().json()["id"]
        made = client.post(f"/service-accounts/{account}/tokens", json={"name": "t", "scopes": ["read"]})
        found.append(str(made.raise_for_status().json()["token"]))
    return found


def _submit(client: httpx.Client) -> str:
    answer = client.post("/jobs", json=simulated_job())
    answer.raise_for_status()
    return str(answer.json()["id"])


def lines(figures: dict[str, Any]) -> list[str]:
    aim = figures["aim"]
    return [
        f"  {figures['deliveries']} deliveries to {figures['followers']} followers: p50 {figures['p50_ms']:.0f} ms, "
        f"p95 {figures['p95_ms']:.0f} ms (aim <= {aim['p95_ms']}), longest {figures['max_ms']:.0f} ms",
        f"  web processes together {figures['more_mb']:.0f} MB more (aim <= {aim['more_mb']}); "
        f"all were connected after {figures['connecting_seconds']:.1f} s",
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
