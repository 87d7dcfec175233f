"""What control groups of either version leave to a process, and how many processes prepare data within that."""

from pathlib import Path

import pytest

from trainer.agent import preparation_group
from trainer.agent.preparation_group import PROCESS_BYTES, num_processes
from trainer.resilience import control_groups
from trainer.resilience.control_groups import available_cores, available_memory

MACHINE = {"proc/meminfo": "MemTotal: 64000000 kB\nMemAvailable: 32000000 kB\n"}
TWO = {
    **MACHINE,
    "proc/self/cgroup": "0::/pod/container\n",
    "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
    "sys/fs/cgroup/pod/container/memory.max": "max\n",
    "sys/fs/cgroup/pod/container/memory.current": "100\n",
    "sys/fs/cgroup/pod/memory.max": "4000000000\n",
    "sys/fs/cgroup/pod/memory.current": "1500000000\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 5\ninactive_file 500000000\n",
    "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/cpu.max": "250000 100000\n",
}
ONE = {
    **MACHINE,
    "proc/self/cgroup": "4:memory:/job/step\n3:cpu,cpuacct:/job\n",
    "proc/self/mountinfo": (
        "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    ),
    "sys/fs/cgroup/memory/job/step/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/job/step/memory.usage_in_bytes": "1500000000\n",
    "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "4000000000\n",
    "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "1500000000\n",
    "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 500000000\n",
    "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "250000\n",
    "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups.os, "sched_getaffinity", lambda pid: set(range(16)))


@pytest.mark.parametrize("files", [TWO, ONE], ids=["version 2", "version 1"])
def test_the_limits_of_groups_above_apply_too(tmp_path: Path, many_cores: None, files: dict[str, str]) -> None:
    write(tmp_path, files)
    assert available_memory(tmp_path) == 3_000_000_000
    assert available_cores(tmp_path) == 2


def test_without_limits_the_machine_decides(tmp_path: Path, many_cores: None) -> None:
    assert (available_memory(tmp_path), available_cores(tmp_path)) == (None, 16)
    write(tmp_path, MACHINE)
    assert available_memory(tmp_path) == 32_000_000 * 1024
    assert available_cores() <= 16
    assert available_memory() is not None


@pytest.mark.parametrize(
    ("units", "nodes", "memory", "connections", "expected"),
    [
        (100, 1, None, 10_000, 16),
        (5, 1, None, 10_000, 5),
        (100, 64, None, 10_000, 2),  # more would have nothing to do
        (100, 1, 3 * PROCESS_BYTES + 1, 10_000, 3),
        (100, 1, 10, 10_000, 1),
        (1000, 16, None, 100, 6),  # the store of the first node takes 100 connections, one of them the leader's
    ],
)
def test_as_many_processes_prepare_as_the_node_leaves_room_for(
    monkeypatch: pytest.MonkeyPatch, units: int, nodes: int, memory: int | None, connections: int, expected: int
) -> None:
    monkeypatch.setattr(preparation_group, "available_cores", lambda: 16)
    monkeypatch.setattr(preparation_group, "available_memory", lambda: memory)
    monkeypatch.setattr(preparation_group, "max_connections", lambda: connections)
    assert num_processes(units, nodes) == expected
