"""State of a node's NVIDIA GPUs, read by NVML through the package `nvidia-ml-py` where that is installed.

Sources: "NVML API Reference Guide" and the module `pynvml` of nvidia-ml-py 13. The tests read
recorded answers; the GPU kit compares with `nvidia-smi`.
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trainer.contract.system import MAX_DEVICES

logger = logging.getLogger(__name__)

FAULTY_SLOWDOWNS: Mapping[int, str] = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake of the machine",
}
"""Bits of nvmlClocksEventReasons that are no usual operation. Left out: idle clocks, clocks that an administrator has
set, the power limit, under which a busy GPU always is, and clocks that several GPUs share."""
SAMPLES_TO_REPORT = 3
"""How many samples in a row a GPU is slowed down before it is reported."""


@dataclass(frozen=True)
class GpuReading:
    """One GPU at one time. `values`: by the name of the series, without those that it does not have."""

    gpu: int
    values: Mapping[str, float]
    slowdowns: frozenset[str] = frozenset()


def open_nvml() -> Any | None:
    """Return the module `pynvml`, initialised; None where it is not installed or finds no driver."""
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415 - optional: the extra `nvidia`
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.info("no NVIDIA GPU is watched: %s", error)
        return None
    return pynvml


class GpuSampler:
    """Reads the GPUs that this process may use. A question that a GPU does not answer is not asked again."""

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        """`visible`: the value of CUDA_VISIBLE_DEVICES, by default that of this process."""
        self._nvml = nvml
        self._handles = self._open(os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible)
        self._unsupported: set[tuple[int, str]] = set()

    def sample(self) -> list[GpuReading]:
        """Return a reading of each GPU, in the order of their numbers."""
        return [self._read(gpu, handle) for gpu, handle in enumerate(self._handles)]

    def _open(self, visible: str | None) -> list[Any]:
        nvml = self._nvml
        found: list[Any] = []
        if visible is None:
            names: list[str] = []
            with suppress(nvml.NVMLError):
                names = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
        else:
            names = [name.strip() for name in visible.split(",") if name.strip()]
        for name in names[:MAX_DEVICES]:
            with suppress(nvml.NVMLError):  # such as one that the control group of this process hides
                by_index = name.isdigit()
                found.append(
                    nvml.nvmlDeviceGetHandleByIndex(int(name))
                    if by_index
                    else nvml.nvmlDeviceGetHandleByUUID(name.encode())
                )
        return found

    def _read(self, gpu: int, handle: Any) -> GpuReading:
        nvml, values = self._nvml, {}

        def ask(name: str, question: Callable[[], float]) -> float | None:
            if (gpu, name) in self._unsupported:
                return None
            try:
                values[name] = float(question())
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
                self._unsupported.add((gpu, name))
            except nvml.NVMLError as error:
                logger.debug("%s of GPU %d: %s", name, gpu, error)
            return values.get(name)

        def memory_used() -> float:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            return float(memory.used / memory.total)

        def ecc(kind: int) -> float:
            return float(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, nvml.NVML_VOLATILE_ECC))

        ask("system/gpu_utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        ask("system/gpu_memory_used", memory_used)
        ask("system/gpu_temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        ask("system/gpu_power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        ask("system/gpu_clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        ask("system/gpu_ecc_corrected", lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED))
        ask("system/gpu_ecc_uncorrected", lambda: ecc(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED))
        ask("system/nvlink_errors", lambda: self._nvlink_errors(handle))
        # The older of the two names of this question, which all drivers know.
        reasons = ask("system/gpu_throttled", lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        if reasons is None:
            return GpuReading(gpu, values)
        slowdowns = frozenset(name for bit, name in FAULTY_SLOWDOWNS.items() if int(reasons) & bit)
        return GpuReading(gpu, {**values, "system/gpu_throttled": float(bool(slowdowns))}, slowdowns)

    def _nvlink_errors(self, handle: Any) -> float:
        """Return the errors of all links. Raises NVMLError_NotSupported for a GPU that counts none."""
        nvml = self._nvml
        fields = [
            nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
            nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
        ]
        answers = [each for each in nvml.nvmlDeviceGetFieldValues(handle, fields) if each.nvmlReturn == 0]
        if not answers:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        # All counters are unsigned; the unused high bytes of a shorter one are zero.
        return float(sum(each.value.ullVal for each in answers))


@dataclass(frozen=True)
class SlowGpu:
    """A GPU whose clocks have been held down since `since`."""

    gpu: int
    slowdowns: str
    since: datetime
    megahertz: float | None


@dataclass(frozen=True)
class EccErrors:
    """`errors` uncorrected errors of a GPU's memory since `since`, of `total` since its driver was loaded."""

    gpu: int
    errors: int
    total: int
    since: datetime


class GpuWatch:
    """Finds what is to be reported in consecutive readings. Pure."""

    def __init__(self) -> None:
        self._slow: dict[int, tuple[datetime, int]] = {}  # since when, and in how many samples
        self._ecc: dict[int, tuple[int, datetime]] = {}

    def observe(self, readings: list[GpuReading], at: datetime) -> list[SlowGpu | EccErrors]:
        """Return GPUs that have been slowed down for SAMPLES_TO_REPORT samples, once until they no longer are, and
        those with new uncorrected errors."""
        found: list[SlowGpu | EccErrors] = []
        for reading in readings:
            if not reading.slowdowns:
                self._slow.pop(reading.gpu, None)
            else:
                since, samples = self._slow.get(reading.gpu, (at, 0))
                self._slow[reading.gpu] = (since, samples + 1)
                if samples + 1 == SAMPLES_TO_REPORT:
                    names = ", ".join(sorted(reading.slowdowns))
                    found.append(SlowGpu(reading.gpu, names, since, reading.values.get("system/gpu_clock")))
            total = reading.values.get("system/gpu_ecc_uncorrected")
            if total is None:
                continue
            before, clean_at = self._ecc.get(reading.gpu, (int(total), at))
            if total > before:
                found.append(EccErrors(reading.gpu, int(total) - before, int(total), clean_at))
            self._ecc[reading.gpu] = (int(total), at)
        return found
