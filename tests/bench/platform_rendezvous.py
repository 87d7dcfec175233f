"""Rendezvous of many nodes over HTTP: how soon all have their ranks, and what they cost the platform while they wait.

Aims: 1,250 nodes within 5 s, and at most 30 requests a second while they wait. Agents, platform and stores share this
machine. An agent is a connection of its own that joins and waits as the real one does, without heartbeats: those are
the same before, during and after a rendezvous. Of three rounds of the same nodes, the last node of the third one joins
when the others have waited for WAITED_SECONDS.
"""

import argparse
import asyncio
import json
import os
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from deploy.local.handle import StackHandle
from tests.bench.platform_stack import multi_node_attempt, private_stack, processor_seconds
from trainer.agent.rendezvous_client import WAIT_SECONDS

NODES = (64, 256, 1250)
WAITED_SECONDS = 190.0  # longer than any response is held, so that each node asks again
AIM = {"nodes": 1250, "seconds": 5.0, "requests_per_second": 30.0}


@dataclass
class Agents:
    """The simulated agents of one attempt, when each has joined, and what it was answered."""

    address: Any
    token: str
    wait_seconds: int
    requests: int = 0
    joined: int = 0
    replies: dict[int, dict[str, Any]] = field(default_factory=dict)
    reply_bytes: int = 0
    times: list[float] = field(default_factory=list)

    async def run(self, index: int, round_: int) -> None:
        """Join and wait, as the agent does; a response that is only held counts as joined with its head."""
        reader, writer = await asyncio.open_connection(self.address.hostname, self.address.port)
        try:
            joined = False
            while True:
                body = json.dumps(
                    {
                        "node_index": index, "name": f"node-{index}", "address": f"10.{index >> 8}.0.{index & 255}",
                        "store_port": 29500, "topology": [f"switch-{index // 32}"], "round": round_,
                        "wait_seconds": self.wait_seconds,
                    }
                )  # fmt: skip
                writer.write(
                    f"POST /api/agent/v1/rendezvous HTTP/1.1\r\nHost: {self.address.netloc}\r\n"
                    f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
                )
                self.requests += 1
                head = await reader.readuntil(b"\r\n\r\n")
                assert b" 200 " in head.split(b"\r\n")[0], head
                self.joined += not joined
                joined = True
                content = await _content(reader, head)
                reply = json.loads(content)
                if reply["state"] == "placed":
                    self.times.append(time.monotonic())
                    self.reply_bytes += len(content.strip())
                    self.replies[index] = reply
                    return
        finally:
            writer.close()


async def _content(reader: asyncio.StreamReader, head: bytes) -> bytes:
    fields = dict(line.lower().split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
    if b"content-length" in fields:
        return await reader.readexactly(int(fields[b"content-length"]))
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return b"".join(pieces)


@dataclass
class CpuReading:
    """CPU seconds since the reading was begun."""

    stack: StackHandle

    def __post_init__(self) -> None:
        self._start = self._now()

    def _now(self) -> dict[str, float]:
        platform = {name: processor_seconds(self.stack, (name,)) for name in ("web", "postgres")}
        return {**platform, "agents": time.process_time()}

    def seconds(self) -> dict[str, float]:
        return {name: value - self._start[name] for name, value in self._now().items()}


async def _round(stack: StackHandle, agents: Agents, nodes: int, number: int, waited: float) -> dict[str, Any]:
    """All nodes but one join, wait, and get their ranks when the last joins."""
    used, began = CpuReading(stack), time.monotonic()
    tasks = [asyncio.create_task(agents.run(index, number)) for index in range(nodes - 1)]
    while agents.joined < nodes - 1:
        await asyncio.sleep(0.02)
        for task in tasks:
            if task.done():
                task.result()
    joining, joining_cpu = time.monotonic() - began, used.seconds()
    used, before, highest = CpuReading(stack), agents.requests, 0
    until = time.monotonic() + waited
    while time.monotonic() < until:
        second = agents.requests
        await asyncio.sleep(1.0)
        highest = max(highest, agents.requests - second)
    waiting = {
        "requests_per_second": (agents.requests - before) / waited,
        "highest_in_a_second": highest,
        "cpu_percent_of_a_core": {name: value / waited * 100 for name, value in used.seconds().items()},
    } if waited else {}  # fmt: skip
    used, last = CpuReading(stack), time.monotonic()
    await asyncio.gather(*tasks, agents.run(nodes - 1, number))
    answering = max(agents.times) - last
    assert sorted(reply["node_rank"] for reply in agents.replies.values()) == list(range(nodes))
    return {
        "nodes": nodes,
        "round": number,
        "joining_seconds": joining,
        "answering_seconds": answering,
        "total_seconds": joining + answering,
        "cpu_seconds": {name: value + joining_cpu[name] for name, value in used.seconds().items()},
        "waiting": waiting,
        "reply_bytes": agents.reply_bytes,
    }


def measure(nodes: tuple[int, ...] = NODES, waited: float = WAITED_SECONDS) -> dict[str, Any]:
    with private_stack() as stack:
        address = urlsplit(stack.credentials["url"])
        rounds = []
        for count in nodes:
            token = multi_node_attempt(stack, count)
            for number, seconds in ((1, 0.0), (2, 0.0), (3, waited)):
                agents = Agents(address, token, WAIT_SECONDS)
                rounds.append(asyncio.run(_round(stack, agents, count, number, seconds)))
    return {"rounds": rounds, "load": os.getloadavg()[0], "aim": AIM}


def lines(figures: dict[str, Any]) -> list[str]:
    title = "nodes  round  all joined s  then answered s  total s  CPU s: web  PostgreSQL  agents  replies KB"
    shown = [f"  {title}  waiting: requests/s  highest  CPU %"]
    for one in figures["rounds"]:
        used, waiting = one["cpu_seconds"], one["waiting"]
        row = (
            f"  {one['nodes']:5d} {one['round']:6d} {one['joining_seconds']:13.2f} {one['answering_seconds']:16.2f} "
            f"{one['total_seconds']:8.2f} {used['web']:11.2f} {used['postgres']:11.2f} {used['agents']:7.2f} "
            f"{one['reply_bytes'] / 1e3:11.0f}"
        )
        if waiting:
            cpu = waiting["cpu_percent_of_a_core"]["web"] + waiting["cpu_percent_of_a_core"]["postgres"]
            row += f" {waiting['requests_per_second']:20.1f} {waiting['highest_in_a_second']:8d} {cpu:6.1f}"
        shown.append(row)
    aim = figures["aim"]
    end = f"aim: {aim['nodes']} nodes in <= {aim['seconds']:.0f} s, <= {aim['requests_per_second']:.0f} requests/s"
    return [*shown, f"  {end}; load of the machine {figures['load']:.1f}"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench.platform_rendezvous")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--waited", type=float, default=WAITED_SECONDS, help="seconds for which the nodes wait")
    options = parser.parse_args()
    measured = measure(tuple(options.nodes), options.waited)
    print("\n".join(lines(measured)))
    print(json.dumps(measured))
