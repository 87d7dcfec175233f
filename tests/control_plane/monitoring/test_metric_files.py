"""Counters in files on a full disk: the process lives, and nothing that it counts is lost once there is room."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import SmallDisk, small_disk

COUNT = """
import os, sys
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from athanor.core.metrics import TELEMETRY_ITEMS

def count(first, last):
    for number in range(first, last):
        TELEMETRY_ITEMS.labels(f"kind-{number:05}-" + "x" * 100).inc()

count(0, int(sys.argv[1]))
print("counted", flush=True)
sys.stdin.readline()
count(0, int(sys.argv[2]))
print("counted", flush=True)
sys.stdin.readline()
count(0, int(sys.argv[2]))
shared = CollectorRegistry()
MultiProcessCollector(shared, os.environ["PROMETHEUS_MULTIPROC_DIR"])
print(sum(float(line.split()[-1]) for line in generate_latest(shared).decode().splitlines() if "kind-" in line))
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "16m") as found:
        yield found


class Counting:
    """A process that counts three times: `before` series, then twice `then` series."""

    def __init__(self, disk: SmallDisk, before: int, then: int) -> None:
        environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(disk.path)}
        command = [sys.executable, "-c", COUNT, str(before), str(then)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def has_counted(self) -> bool:
        assert self._process.stdout is not None
        return self._process.stdout.readline() == "counted\n"

    def count(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> tuple[float, str]:
        """The sum that all processes of the folder have counted, and what was logged."""
        output, errors = self._process.communicate("\n", timeout=60)
        assert self._process.returncode == 0, (self._process.returncode, errors)
        return float(output or 0.0), errors


@pytest.mark.parametrize("then", [200, 5000])
def test_a_process_on_a_disk_that_is_full_later_loses_no_count(disk: SmallDisk, then: int) -> None:
    """200 series fit into the first size of the file, 5000 do not."""
    counting = Counting(disk, 100, then)
    assert counting.has_counted()
    disk.fill()
    counting.count()
    assert counting.has_counted(), "killed by SIGBUS"
    disk.free()
    found, _ = counting.end()
    assert found == 100 + then + then


def test_a_process_that_starts_on_a_full_disk_counts_in_its_memory(disk: SmallDisk) -> None:
    disk.fill()
    counting = Counting(disk, 100, 5000)
    assert counting.has_counted()
    disk.free()
    counting.count()
    assert counting.has_counted()
    found, errors = counting.end()
    assert found == 0.0, "what is not shared is not read"
    assert "those of this process are not shared" in errors
