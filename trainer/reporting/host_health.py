"""Use of a machine's CPUs, memory and disk, its pressure, power and temperatures, from the files of the kernel."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from trainer.contract.system import MAX_DEVICES

_MICROSECONDS = 1e6
_MILLI = 1000.0
_IDLE = (3, 4)  # fields of the line `cpu` of /proc/stat: idle, iowait (proc(5))
# Counters that are disjoint: each processor package, and the memory beside it. `psys` and `core` count parts of them
# again. Source: the kernel's documentation "Power Capping Framework".
_RAPL_PACKAGE, _RAPL_PART = re.compile(r"intel-rapl:\d+"), re.compile(r"intel-rapl:\d+:\d+")
_GUEST = 8  # the last two fields are counted in the first ones already


class HostSampler:
    """`work`: a folder of the disk to watch. `root`: the folder that contains `proc` and `sys`."""

    def __init__(self, work: Path, root: Path = Path("/"), clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._root, self._clock = work, root, clock
        self._cores = os.cpu_count() or 1
        self._cpu_before: tuple[int, int] | None = None
        self._pressure_before: dict[str, tuple[float, int]] = {}
        self._energy_before: tuple[float, dict[str, int]] | None = None

    def sample(self) -> dict[str, list[float | None]]:
        """Return the values by the name of their series (`trainer.contract.system`); a series that this machine does
        not have is absent. Shares of time are since the call before, and absent in the first."""
        values: dict[str, list[float | None]] = {}
        for name, value in (
            ("system/host_power", self._power()),
            ("system/cpu_utilisation", self._cpu_utilisation()),
            ("system/load_per_core", self._load()),
            *self._memory().items(),
            *((f"system/{kind}_pressure", self._pressure(kind)) for kind in ("cpu", "memory", "io")),
            ("system/disk_used", self._disk()),
        ):
            if value is not None:
                values[name] = [value]
        zones = self._temperatures()
        return values | ({"system/temperature": zones} if any(zone is not None for zone in zones) else {})

    def _cpu_utilisation(self) -> float | None:
        first = self._read("proc/stat").partition("\n")[0].split()
        if len(first) <= max(_IDLE) + 1 or first[0] != "cpu":
            return None
        ticks = [int(part) for part in first[1 : _GUEST + 1]]
        now = (sum(ticks), sum(ticks[field] for field in _IDLE))
        before, self._cpu_before = self._cpu_before, now
        if before is None or now[0] <= before[0]:
            return None
        return 1.0 - (now[1] - before[1]) / (now[0] - before[0])

    def _load(self) -> float | None:
        words = self._read("proc/loadavg").split()
        return float(words[0]) / self._cores if words else None

    def _memory(self) -> dict[str, float]:
        found: dict[str, int] = {}
        for line in self._read("proc/meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = 1024 * int(rest.split()[0])
        if len(found) < 2 or not found["MemTotal"]:
            return {}
        used = found["MemTotal"] - found["MemAvailable"]
        return {"system/memory_used": used / found["MemTotal"], "system/memory_used_bytes": float(used)}

    def _pressure(self, kind: str) -> float | None:
        """Return the share of time in which at least one process waited (`some` in the kernel's PSI, which counts
        microseconds)."""
        line = self._read(f"proc/pressure/{kind}").partition("\n")[0]
        _, _, total = line.partition("total=")
        if not line.startswith("some") or not total.isdigit():
            return None
        now = (self._clock(), int(total))
        before = self._pressure_before.get(kind)
        self._pressure_before[kind] = now
        if before is None or now[0] <= before[0]:
            return None
        return min((now[1] - before[1]) / _MICROSECONDS / (now[0] - before[0]), 1.0)

    def _power(self) -> float | None:
        """Return the mean power in watts of all packages and their memory; None if a counter is not readable, as only
        root may read them by default, or if one was reset."""
        found: dict[str, int] = {}
        for zone in sorted((self._root / "sys/class/powercap").glob("intel-rapl:*")):
            path, is_part = f"sys/class/powercap/{zone.name}", _RAPL_PART.fullmatch(zone.name) is not None
            name = self._read(f"{path}/name").strip()
            if is_part and name == "dram" or _RAPL_PACKAGE.fullmatch(zone.name) and name.startswith("package"):
                text = self._read(f"{path}/energy_uj").strip()
                if not text.isdigit():
                    return None
                found[path] = int(text)
        if not found:
            return None
        now, before = (self._clock(), found), self._energy_before
        self._energy_before = now
        if before is None or now[0] <= before[0] or before[1].keys() != found.keys():
            return None
        used = 0
        for path, energy in found.items():
            change = energy - before[1][path]
            if change < 0:  # the counter starts again at 0 after its largest value
                largest = self._read(f"{path}/max_energy_range_uj").strip()
                if not largest.isdigit():
                    return None
                change += int(largest) + 1
            used += change
        return used / _MICROSECONDS / (now[0] - before[0])

    def _temperatures(self) -> list[float | None]:
        folder = self._root / "sys/class/thermal"
        zones = [path for path in folder.glob("thermal_zone*") if path.name[len("thermal_zone") :].isdigit()]
        zones.sort(key=lambda path: int(path.name[len("thermal_zone") :]))
        texts = [self._read(f"sys/class/thermal/{zone.name}/temp").strip() for zone in zones[:MAX_DEVICES]]
        return [int(text) / _MILLI if text.lstrip("-").isdigit() else None for text in texts]

    def _disk(self) -> float | None:
        """Return the share in use of what users may fill, as `df` does."""
        try:
            found = os.statvfs(self._work)
        except OSError:
            return None
        used = found.f_blocks - found.f_bfree
        return used / (used + found.f_bavail) if used + found.f_bavail else None

    def _read(self, path: str) -> str:
        """Return the text of a file, empty if it is not there or not readable."""
        try:
            return (self._root / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""
