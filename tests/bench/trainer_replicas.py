"""Copies on other nodes: how fast they are sent, what they cost in a step, and how long a lost node holds up training.

`python -m tests.bench.trainer_replicas [--losses 3] [--rounds 2] [--steps 40] [--tokens 1024] [--megabytes 512]`

- `transport`: MB/s of a copy sent over the loopback interface to the server of an agent in another process, its digest
  verified there; and of one fetched.
- `step`: a run of two agents with one process each, on this machine, with and without a spare node, which is what makes
  it send copies; shadow checkpoints after each step, and `auto`. In turns. CPU seconds say more than the clock where
  the machine has other work; sender and receiver share its cores here.
- `loss`: three agents, of which one is spare; one of the two that train is killed with SIGKILL. Seconds until the first
  step that its successor and the other node have finished, and the finished steps that were taken again.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from tests.bench.trainer_throughput import SHAPE
from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import platform_run, tiny_training
from tests.trainer.test_nodes import agent
from trainer.agent.replica_server import ReplicaServer
from trainer.contract.run import ProcessLayout, RunConfig
from trainer.resilience.peer_link import fetch, push, secret_of
from trainer.resilience.replicas import CopyId
from trainer.resilience.shadow_memory import ShadowMemory, digest_of

SECRET = secret_of("key", "attempt")
WARM_UP_STEPS = 5
TRANSFERS = 6  # of which the first, for which memory is allocated, is reported apart
SECONDS = 300


@dataclass(frozen=True)
class Loss:
    """`next_step`: seconds from the kill until the end of the next step. `steps_lost`: finished steps that were taken
    again. `tier`: what the run continued from."""

    next_step: float
    steps_lost: int
    tier: str


def serve(report: Connection) -> None:
    server = ReplicaServer("127.0.0.1", SECRET, expected_ranks=1)
    report.send(server.port)
    threading.Event().wait()


def transport(megabytes: int) -> dict[str, list[float]]:
    """Return the MB/s of each transfer of a copy of this size, after the first."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=serve, args=(writer,), daemon=True)
    child.start()
    address, size = ("127.0.0.1", reader.recv()), megabytes * 10**6 // 64 * 64
    memory = ShadowMemory.create("bench")
    assert memory is not None
    memory.open(size)
    memory.data(0)[:size] = random.randbytes(2**20) * (size // 2**20) + bytes(size % 2**20)
    header = {"rank": 0, "round": 1, "text": "{}", "digest": digest_of(memory.data(0)[:size])}
    into = memoryview(bytearray(size))
    found: dict[str, list[float]] = {"sent": [], "fetched": []}
    for number in range(TRANSFERS):
        begin = time.perf_counter()
        push(address, SECRET, memory, 0, size, header | {"copy": [number, 0, 1]})
        between = time.perf_counter()
        fetch(address, SECRET, 0, CopyId(number, 0, 1), into)
        found["sent"].append(size / 1e6 / (between - begin))
        found["fetched"].append(size / 1e6 / (time.perf_counter() - between))
    child.kill()
    child.join()
    return found


def run_of(
    steps: int, tokens: int, spare_nodes: int, interval: int | str = 1
) -> tuple[RunConfig, Any, dict[str, bytes]]:
    training = tiny_training(
        steps=steps, model={"shape": SHAPE}, tokens_per_step=tokens, sequence_length=256,
        tokenizer={"vocab_size": 2048}, evaluation={"every_steps": 100_000, "sequences": 1},
    )  # fmt: skip
    run, keys, objects = platform_run(training, checkpoint={"every_steps": 100_000, "shadow_every_steps": interval})
    changes = {"layout": ProcessLayout(nodes=2), "spare_nodes": spare_nodes, "max_restarts_in_place": 1}
    return RunConfig.model_validate({**run.model_dump(), **changes}), keys, objects


def values_of(api: AgentApi) -> list[dict[str, float]]:
    return [point["values"] for point in api.points() if "train/loss" in point["values"]]


def cost(steps: int, tokens: int, spare_nodes: int, interval: int | str) -> dict[str, float]:
    """Return medians of the seconds of a step and of what training waited for its shadow checkpoint, the CPU seconds of
    all processes for each step, and the median age of the replica in steps."""
    run, keys, objects = run_of(100_000, tokens, spare_nodes, interval)
    with tempfile.TemporaryDirectory() as name, AgentApi(run, keys, objects) as api:
        agents = [agent(api, Path(name), index) for index in range(2 + spare_nodes)]
        try:
            api.wait_for(lambda: len(values_of(api)) >= WARM_UP_STEPS, SECONDS)
            first, before = len(values_of(api)), cpu_seconds(agents)
            api.wait_for(lambda: len(values_of(api)) >= first + steps, SECONDS)
            last, after = len(values_of(api)), cpu_seconds(agents)
        finally:
            end(agents)
        values = values_of(api)[first:last]
    ages = [each["checkpoint/replica_age_steps"] for each in values if "checkpoint/replica_age_steps" in each]
    return {
        "seconds": statistics.median(each["time/step_seconds"] for each in values),
        "waits": statistics.mean(each["time/shadow_seconds"] for each in values),
        "cpu_seconds": (after - before) / (last - first),
        "age_steps": statistics.median(ages) if ages else -1.0,
    }


def cpu_seconds(agents: list[Any]) -> float:
    """Return the CPU seconds that agents and their processes have taken."""
    total = 0.0
    for each in agents:
        for process in (psutil.Process(each.pid), *psutil.Process(each.pid).children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def lose_a_node(tokens: int, lost: int) -> Loss:
    run, keys, objects = run_of(100_000, tokens, spare_nodes=1)
    with tempfile.TemporaryDirectory() as name, AgentApi(run, keys, objects) as api:
        agents = [agent(api, Path(name), index) for index in range(3)]
        try:
            api.wait_for(lambda: len(values_of(api)) >= 2 * WARM_UP_STEPS, SECONDS)
            time.sleep(random.uniform(0.0, 1.0))  # so that the kill comes at any moment of a step
            killed_at = time.time()
            agents[lost].send_signal(signal.SIGKILL)
            api.wait_for(lambda: second_group(api), SECONDS)
            first = second_group(api)[0]
        finally:
            end(agents)
        restored = api.events("checkpoint.restored")
        last = max(event["step"] for event in api.events("generation.started"))
        (tier, step) = (restored[0]["tier"], restored[0]["step"]) if restored else ("none", 0)
    return Loss(datetime.fromisoformat(first["time"]).timestamp() - killed_at, last - step, tier)


def second_group(api: AgentApi) -> list[dict[str, Any]]:
    """Return the points of steps that were taken by the second group of workers."""
    points = [point for point in api.points() if point["generation"] == 1 and "train/loss" in point["values"]]
    restored = [event["step"] for event in api.events("checkpoint.restored")]
    return [point for point in points if point["step"] > max(restored, default=0)]


def end(agents: list[Any]) -> None:
    for process in agents:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--losses", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--intervals", nargs="*", default=["1", "auto"])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--megabytes", type=int, default=512)
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    taken: dict[str, list[dict[str, float]]]
    if arguments.megabytes:
        results["transport"] = found = transport(arguments.megabytes)
        for kind, rates in found.items():
            print(f"{kind}: {statistics.median(rates[1:]):,.0f} MB/s (the first {rates[0]:,.0f})", flush=True)
    results["steps"] = taken = {}
    for interval, spare_nodes in list(product(arguments.intervals, (0, 1))) * arguments.rounds:
        label = f"interval {interval}, {'with' if spare_nodes else 'without'} copies on other nodes"
        taken.setdefault(label, []).append(
            cost(arguments.steps, arguments.tokens, spare_nodes, interval if interval == "auto" else int(interval))
        )
        shown = ", ".join(f"{kind} {value:.4f}" for kind, value in taken[label][-1].items())
        print(f"{label}: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
    results["losses"] = [asdict(lose_a_node(arguments.tokens, 1 - number % 2)) for number in range(arguments.losses)]
    for each in results["losses"]:
        print(each, flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    sys.stdout.write(json.dumps({"trainer_replicas": results}) + "\n")


if __name__ == "__main__":
    main()
