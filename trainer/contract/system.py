"""What a node's agent samples of its machine: the names of the series, and the message that carries their values."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import WireModel

SAMPLE_SECONDS = 10.0
MAX_DEVICES = 64  # values of one series in one sample

Unit = Literal["fraction", "bytes", "celsius", "watts", "megahertz", "count"]


@dataclass(frozen=True)
class SystemSeries:
    """`title`: what it is, for people. `of`: what a node has several values of, empty for one value per node."""

    title: str
    unit: Unit
    of: Literal["", "gpu", "zone"] = ""


SYSTEM_SERIES: Mapping[str, SystemSeries] = {
    "system/gpu_utilisation": SystemSeries("Time in which a kernel ran on the GPU", "fraction", "gpu"),
    "system/gpu_memory_used": SystemSeries("GPU memory in use", "fraction", "gpu"),
    "system/gpu_temperature": SystemSeries("GPU temperature", "celsius", "gpu"),
    "system/gpu_power": SystemSeries("GPU power", "watts", "gpu"),
    "system/gpu_clock": SystemSeries("GPU clock (SM)", "megahertz", "gpu"),
    "system/gpu_throttled": SystemSeries("GPUs slowed down by heat or a fault", "fraction", "gpu"),
    "system/gpu_ecc_corrected": SystemSeries("Corrected ECC errors since the driver was loaded", "count", "gpu"),
    "system/gpu_ecc_uncorrected": SystemSeries("Uncorrected ECC errors since the driver was loaded", "count", "gpu"),
    "system/nvlink_errors": SystemSeries("NVLink errors since the driver was loaded", "count", "gpu"),
    "system/host_power": SystemSeries("Power of the processors and their memory (RAPL)", "watts"),
    "system/cpu_utilisation": SystemSeries("CPU time in use", "fraction"),
    "system/load_per_core": SystemSeries("Load of the last minute, per core", "count"),
    "system/memory_used": SystemSeries("Host memory in use", "fraction"),
    "system/memory_used_bytes": SystemSeries("Host memory in use, in bytes", "bytes"),
    "system/cpu_pressure": SystemSeries("Time in which a process waited for a CPU", "fraction"),
    "system/memory_pressure": SystemSeries("Time in which a process waited for memory", "fraction"),
    "system/io_pressure": SystemSeries("Time in which a process waited for a disk", "fraction"),
    "system/temperature": SystemSeries("Temperature of the machine's thermal zones", "celsius", "zone"),
    "system/disk_used": SystemSeries("Disk of the work folder in use", "fraction"),
}

MAX_VALUE = 1e15  # sums over any number of nodes stay finite
Value = Annotated[float, Field(ge=-MAX_VALUE, le=MAX_VALUE)]
DeviceValues = Annotated[list[Value | None], Field(max_length=MAX_DEVICES)]


class SystemSample(WireModel):
    """The values of one node at one time.

    `values`: by the name of the series, one value for each GPU or thermal zone in the order of their numbers, else one;
    None where it cannot be read. The platform drops names that are not in SYSTEM_SERIES.
    """

    time: datetime
    node: Annotated[str, Field(max_length=253)]
    values: Annotated[dict[str, DeviceValues], Field(max_length=2 * len(SYSTEM_SERIES))]
