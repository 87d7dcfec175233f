"""The health of a node: the kernel's files as they are here, and recorded answers in place of NVIDIA's library."""

from collections.abc import Iterator
from ctypes import Structure, c_int, c_uint, c_ulonglong
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.contract.run import Batch
from trainer.contract.system import SYSTEM_SERIES
from trainer.reporting.gpu_health import EccErrors, GpuReading, GpuSampler, GpuWatch, SlowGpu
from trainer.reporting.host_health import HostSampler
from trainer.reporting.spool import SpoolWriter
from trainer.reporting.system_monitor import SystemMonitor

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class NVMLError(Exception):
    def __new__(cls, value: int) -> "NVMLError":
        kinds = {3: NVMLError_NotSupported, 13: NVMLError_FunctionNotFound}
        return Exception.__new__(kinds.get(value, cls) if cls is NVMLError else cls)


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_FunctionNotFound(NVMLError):
    pass


class FieldValue(Structure):
    _fields_ = (("nvmlReturn", c_int), ("valueType", c_uint), ("ull", c_ulonglong))

    @property
    def value(self) -> Any:
        return SimpleNamespace(ullVal=self.ull)


@dataclass
class RecordedNvml:
    """Answers of one GPU, of the shapes that pynvml returns; an int in place of an answer is an error code."""

    gpus: int = 2
    reasons: int = 0x4
    uncorrected: int | None = 0
    links: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0), (0, 0), (0, 7), (0, 0)])
    asked: list[str] = field(default_factory=list)
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_VOLATILE_ECC = 0
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL = 38
    NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL = 45
    NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL = 52
    NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
    NVMLError = NVMLError
    NVMLError_NotSupported = NVMLError_NotSupported
    NVMLError_FunctionNotFound = NVMLError_FunctionNotFound

    def nvmlDeviceGetCount(self) -> int:
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index >= self.gpus:
            raise NVMLError(2)
        return f"handle {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> str:
        return f"handle {uuid.decode()}"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=93, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=80 * 2**30, used=60 * 2**30, free=20 * 2**30)

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 71

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 655_321

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self.reasons

    def nvmlDeviceGetTotalEccErrors(self, handle: str, kind: int, counter: int) -> int:
        self.asked.append(f"ecc {kind}")
        if self.uncorrected is None:
            raise NVMLError(3)
        return self.uncorrected if kind == 1 else 12

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[int]) -> list[FieldValue]:
        return [FieldValue(code, 3, count) for code, count in self.links]


def test_a_gpu_is_read_with_the_units_of_the_series() -> None:
    readings = GpuSampler(RecordedNvml(), visible="0,1").sample()
    assert [reading.gpu for reading in readings] == [0, 1]
    assert readings[0].values == {
        "system/gpu_utilisation": 0.93,
        "system/gpu_memory_used": 0.75,
        "system/gpu_temperature": 71.0,
        "system/gpu_power": 655.321,
        "system/gpu_clock": 1980.0,
        "system/gpu_ecc_corrected": 12.0,
        "system/gpu_ecc_uncorrected": 0.0,
        "system/nvlink_errors": 7.0,
        "system/gpu_throttled": 0.0,
    }
    assert set(readings[0].values) == {name for name, series in SYSTEM_SERIES.items() if series.of == "gpu"}


def test_what_a_gpu_does_not_have_is_asked_once_and_left_out() -> None:
    nvml = RecordedNvml(gpus=1, uncorrected=None, links=[(3, 0)] * 4)
    sampler = GpuSampler(nvml, visible="0")
    for _ in range(3):
        values = sampler.sample()[0].values
    assert not {"system/gpu_ecc_corrected", "system/gpu_ecc_uncorrected", "system/nvlink_errors"} & set(values)
    assert nvml.asked == ["ecc 0", "ecc 1"]


def test_only_visible_gpus_are_watched() -> None:
    assert len(GpuSampler(RecordedNvml(gpus=8), visible="6,7").sample()) == 2
    assert len(GpuSampler(RecordedNvml(gpus=8), visible="GPU-1a,GPU-2b").sample()) == 2
    assert len(GpuSampler(RecordedNvml(gpus=8), visible="").sample()) == 0
    assert len(GpuSampler(RecordedNvml(gpus=2), visible="0,5").sample()) == 1, "one that cannot be opened"


def readings(*slowdowns: str, total: float | None = None) -> list[GpuReading]:
    ecc = {} if total is None else {"system/gpu_ecc_uncorrected": total}
    return [GpuReading(3, {"system/gpu_clock": 600.0, **ecc}, frozenset(slowdowns))]


def times() -> Iterator[datetime]:
    now = NOW
    while True:
        yield now
        now += timedelta(seconds=10)


def test_a_slow_gpu_is_reported_once_with_its_beginning() -> None:
    watch, clock = GpuWatch(), times()
    hot = readings("hardware thermal slowdown", "hardware slowdown")
    assert watch.observe(readings(), next(clock)) == []
    found = [watch.observe(hot, next(clock)) for _ in range(5)]
    names = "hardware slowdown, hardware thermal slowdown"
    assert found == [[], [], [SlowGpu(3, names, NOW + timedelta(seconds=10), 600.0)], [], []]
    watch.observe(readings(), next(clock))
    assert [len(watch.observe(hot, next(clock))) for _ in range(3)] == [0, 0, 1], "reported again after a pause"


def test_new_uncorrected_errors_are_reported_and_old_ones_are_not() -> None:
    watch, clock = GpuWatch(), times()
    counts = [4.0, 4.0, 6.0, 6.0]
    found = [watch.observe(readings(total=count), next(clock)) for count in counts]
    assert found == [[], [], [EccErrors(3, 2, 6, NOW + timedelta(seconds=10))], []]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    files = {
        "proc/stat": "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n",
        "proc/loadavg": "3.00 2.00 1.00 1/100 4\n",
        "proc/meminfo": "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  250 kB\n",
        "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 total=5\n",
        "sys/class/thermal/thermal_zone0/temp": "45500\n",
        "sys/class/thermal/thermal_zone10/temp": "61000\n",
        "sys/class/thermal/thermal_zone2/temp": "broken\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_shares_of_time_are_since_the_sample_before(machine: Path) -> None:
    seconds = iter([0.0, 4.0])
    sampler = HostSampler(machine, machine, clock=lambda: next(seconds))
    first = sampler.sample()
    assert "system/cpu_utilisation" not in first
    assert "system/io_pressure" not in first
    (machine / "proc/stat").write_text("cpu  160 0 140 780 120 0 0 0 90 0\n")
    pressure = machine / "proc/pressure/io"
    pressure.write_text(pressure.read_text().replace("total=1000000", "total=2000000"))
    second = sampler.sample()
    assert second["system/cpu_utilisation"] == [0.5], "100 of 200 ticks; the guests' are counted once"
    assert second["system/io_pressure"] == [0.25]
    assert second["system/memory_used"] == [0.75]
    assert second["system/memory_used_bytes"] == [750 * 1024]
    assert second["system/temperature"] == [45.5, None, 61.0]
    assert "system/cpu_pressure" not in second, "this kernel does not have it"


def test_power_is_that_of_all_packages_and_their_memory_and_counters_wrap(machine: Path) -> None:
    powercap = machine / "sys/class/powercap"
    zones = {
        "intel-rapl:0": ("package-0", 9_000_000), "intel-rapl:0:0": ("core", 5), "intel-rapl:0:1": ("dram", 1_000_000),
        "intel-rapl:1": ("package-1", 0), "intel-rapl:2": ("psys", 7),
    }  # fmt: skip
    for zone, (name, energy) in zones.items():
        (powercap / zone).mkdir(parents=True)
        (powercap / zone / "name").write_text(f"{name}\n")
        (powercap / zone / "energy_uj").write_text(f"{energy}\n")
        (powercap / zone / "max_energy_range_uj").write_text("9999999\n")
    seconds = iter([0.0, 10.0, 20.0])
    sampler = HostSampler(machine, machine, clock=lambda: next(seconds))
    (machine / "proc/pressure/io").unlink()  # it reads the clock as well
    assert "system/host_power" not in sampler.sample()
    for zone, energy in (("intel-rapl:0", 4_000_000), ("intel-rapl:0:1", 2_000_000), ("intel-rapl:1", 9_000_000)):
        (powercap / zone / "energy_uj").write_text(f"{energy}\n")
    assert sampler.sample()["system/host_power"] == [1.5], "5 J after a wrap, 1 J and 9 J in 10 s"
    (powercap / "intel-rapl:1/energy_uj").unlink()
    assert "system/host_power" not in sampler.sample(), "a part of it is not the power"


def test_this_machine_is_sampled_and_the_samples_are_spooled(tmp_path: Path) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    nvml = RecordedNvml(gpus=1, reasons=0x48)
    monitor = SystemMonitor(
        SpoolWriter(tmp_path, "system", "agent0-1"), "n1", HostSampler(tmp_path), GpuSampler(nvml, visible="0"),
        lambda kind, **data: events.append((kind, data)),
    )  # fmt: skip
    monitor.sample()
    assert list(tmp_path.glob("system/*.json")), "the first sample does not wait for a batch"
    nvml.uncorrected = 1
    for _ in range(3):
        monitor.sample()
    monitor.stop(5.0)
    batches = [Batch.model_validate_json(path.read_text()) for path in sorted(tmp_path.glob("system/*.json"))]
    samples = [sample for batch in batches for sample in batch.samples]
    assert len(samples) == 4
    last = samples[-1]
    assert last.node == "n1"
    assert last.values["system/gpu_throttled"] == [1.0]
    assert {"system/load_per_core", "system/memory_used", "system/disk_used"} <= set(last.values)
    assert set(last.values) <= set(SYSTEM_SERIES)
    assert all(0 <= value <= 1 for value in last.values["system/disk_used"] if value is not None)
    assert [(kind, data["gpu"]) for kind, data in events] == [("gpu.ecc_uncorrected", 0), ("gpu.throttled", 0)]
