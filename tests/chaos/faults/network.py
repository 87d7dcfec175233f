"""Nodes on one machine, each in a network namespace: a link to the platform, and one to the others that can be cut.

Nothing of it is visible outside these namespaces: the hub, where the platform listens, is one of them too.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

_CLONE_NEWNET = 0x40000000  # linux/sched.h
PLATFORM_ADDRESS = "10.77.0.1"
SLOW_RATE = "8mbit"


class Network:
    """The namespaces of `num_nodes` nodes. `prefix`: of command lines that run in that of a node."""

    def __init__(self, num_nodes: int) -> None:
        self._name, self._nodes = f"athanor-{os.getpid()}", range(num_nodes)
        self._hub = f"{self._name}-hub"

    def address(self, node: int) -> str:
        """Return the address by which other nodes reach this one."""
        return f"10.78.0.{10 + node}"

    def prefix(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", self._node(node)]

    def cut(self, node: int) -> None:
        """Let packets between this node and the others vanish: no connection is closed."""
        _run("ip", "-n", self._hub, "link", "set", f"data{node}", "down")

    def heal(self, node: int) -> None:
        _run("ip", "-n", self._hub, "link", "set", f"data{node}", "up")

    def slow(self, node: int) -> None:
        """Limit what the node receives from others to SLOW_RATE."""
        _run(
            *("tc", "-n", self._hub, "qdisc", "replace", "dev", f"data{node}", "root"),
            *("tbf", "rate", SLOW_RATE, "burst", "32kbit", "latency", "2s"),
        )

    @contextlib.contextmanager
    def hub(self) -> Iterator[None]:
        """Let sockets that this thread opens meanwhile be of the hub."""
        with Path("/proc/thread-self/ns/net").open() as mine, Path(f"/run/netns/{self._hub}").open() as hub:
            _enter(hub)
            try:
                yield
            finally:
                _enter(mine)

    def create(self) -> None:
        for name in (self._hub, *map(self._node, self._nodes)):
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for bridge, address in (("control", PLATFORM_ADDRESS), ("data", "10.78.0.1")):
            _run("ip", "-n", self._hub, "link", "add", "name", bridge, "type", "bridge")
            _run("ip", "-n", self._hub, "addr", "add", f"{address}/24", "dev", bridge)
            _run("ip", "-n", self._hub, "link", "set", bridge, "up")
            for node in self._nodes:
                here, there = f"{bridge}{node}", self._node(node)
                pair = ("name", here, "type", "veth", "peer", "name", bridge, "netns", there)
                _run("ip", "-n", self._hub, "link", "add", *pair)
                _run("ip", "-n", self._hub, "link", "set", here, "master", bridge)
                _run("ip", "-n", self._hub, "link", "set", here, "up")
                mine = self.address(node) if bridge == "data" else f"10.77.0.{10 + node}"
                _run("ip", "-n", there, "addr", "add", f"{mine}/24", "dev", bridge)
                _run("ip", "-n", there, "link", "set", bridge, "up")

    def delete(self) -> None:
        for name in (*map(self._node, self._nodes), self._hub):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def _node(self, node: int) -> str:
        return f"{self._name}-{node}"


@contextlib.contextmanager
def network(num_nodes: int) -> Iterator[Network]:
    """Create the namespaces. Skips (pytest) where that needs rights or `ip` that this machine has not."""
    made = Network(num_nodes)
    try:
        try:
            made.create()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', error)}")
        yield made
    finally:
        made.delete()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _enter(namespace: IO[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed")
