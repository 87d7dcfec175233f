"""The control groups of this process, of version 1 or 2: what they allow it, and what the kernel counts there.

A controller belongs to one version; on a hybrid host the other is mounted as well, without it. A mount shows the part
of the hierarchy below its own root, which in a container is often the group itself. `root`, in all functions: the
folder that contains `proc` and `sys`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_BYTES = 2**60  # version 1 writes a number of about 2**63 without a limit


def group_folders(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, Path, int]]:
    """Yield (folder of the group, folder of the mount, version) where `controller` may be."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return
    paths = {}
    for group in groups:
        number, controllers, path = group.split(":", 2)
        if controller in controllers.split(","):
            paths["cgroup"] = path
        elif number == "0":
            paths["cgroup2"] = path
    for mount in mounts:
        fields, _, kind = mount.partition(" - ")
        below, point = fields.split()[3:5]
        kind, _, options = kind.split()
        if kind not in paths or (kind == "cgroup" and controller not in options.split(",")):
            continue
        path = paths[kind]
        inside = path.removeprefix(below.rstrip("/")) if (path + "/").startswith(below.rstrip("/") + "/") else ""
        mounted = root / point.lstrip("/")
        yield mounted / inside.lstrip("/"), mounted, 1 if kind == "cgroup" else 2


def available_cores(root: Path = Path("/")) -> int:
    """Return how many cores this process can keep busy, at least 1: of those it may run on, what the quotas of its
    control groups allow."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder, version in _with_ancestors("cpu", root):
        names = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        limit = " ".join(_read(folder / name) for name in names).split()  # in microseconds: quota, period
        if len(limit) == 2 and all(number.isdigit() for number in limit):
            cores = min(cores, int(limit[0]) / int(limit[1]))
    return max(1, int(cores))


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that this process can still take: what the machine has available, and what the limits of its
    control groups leave. Files that the kernel can drop from memory count as available. None if unknown."""
    found = []
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for folder, version in _with_ancestors("memory", root):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_read(folder / name).strip() for name in names)
        if limit.isdigit() and used.isdigit() and int(limit) < _UNLIMITED_BYTES:
            found.append(int(limit) - int(used) + _droppable_bytes(folder))
    return max(0, min(found)) if found else None


def _droppable_bytes(folder: Path) -> int:
    names = ("total_inactive_file", "inactive_file")  # version 1 counts the groups below in the first
    counts = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
    return int(next((counts[name] for name in names if name in counts), 0))


def _with_ancestors(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Yield (folder, version) of the groups that limit this process, its own first."""
    for folder, mounted, version in group_folders(controller, root):
        yield folder, version
        for parent in folder.parents:
            if not parent.is_relative_to(mounted):
                break
            yield parent, version


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
