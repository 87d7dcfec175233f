"""Samples the health of a node while the agent runs, for the run's system charts, and reports what is wrong."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from trainer.contract.system import SAMPLE_SECONDS, SYSTEM_SERIES, SystemSample
from trainer.reporting.gpu_health import GpuReading, GpuSampler, GpuWatch, SlowGpu, open_nvml
from trainer.reporting.host_health import HostSampler
from trainer.reporting.spool import SpoolWriter

FLUSHED_SAMPLES = 6
"""Samples of one batch: at a thousand nodes the platform stores 17 batches a second."""


class SystemMonitor:
    """Samples in a thread between `start` and `stop`, every SAMPLE_SECONDS."""

    def __init__(
        self, spool: SpoolWriter, node: str, host: HostSampler, gpus: GpuSampler | None,
        report_event: Callable[..., None],
    ) -> None:  # fmt: skip
        """`gpus`: None without GPUs that can be watched. `report_event`: called with a type and the event's fields."""
        self._spool, self._node, self._host, self._gpus = spool, node, host, gpus
        self.report_event = report_event
        self._watch = GpuWatch()
        self._num_samples = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="system-monitor", daemon=True)

    @classmethod
    def of_node(cls, spool: Path, writer: str, node: str, report_event: Callable[..., None]) -> "SystemMonitor":
        """Return the monitor of this machine. `spool`: the agent's; the disk below it is watched."""
        nvml = open_nvml()
        gpus = GpuSampler(nvml) if nvml is not None else None
        return cls(SpoolWriter(spool, "system", writer), node, HostSampler(spool), gpus, report_event)

    def start(self) -> None:
        """Start the thread that samples."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Sample a last time and write all samples to the spool, within about `seconds`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        self._spool.flush_within(seconds)

    def sample(self) -> None:
        """Take one sample, and report what is wrong."""
        now = datetime.now(UTC)
        values = self._host.sample()
        readings = self._gpus.sample() if self._gpus is not None else []
        for name in (name for name, series in SYSTEM_SERIES.items() if series.of == "gpu"):
            column = [reading.values.get(name) for reading in readings]
            if any(value is not None for value in column):
                values[name] = column
        self._spool.add(SystemSample(time=now, node=self._node, values=values))
        self._report(readings, now)
        # The first sample is shown soon, so that a run shorter than a batch has one.
        if self._num_samples % FLUSHED_SAMPLES == 0:
            self._spool.flush()
        self._num_samples += 1

    def _report(self, readings: list[GpuReading], now: datetime) -> None:
        for found in self._watch.observe(readings, now):
            since = found.since.isoformat(timespec="seconds")
            if isinstance(found, SlowGpu):
                self.report_event(
                    "gpu.throttled", node=self._node, gpu=found.gpu, because=found.slowdowns, since=since,
                    megahertz=found.megahertz,
                )  # fmt: skip
            else:
                self.report_event(
                    "gpu.ecc_uncorrected", node=self._node, gpu=found.gpu, errors=found.errors, total=found.total,
                    since=since, because=f"{found.errors} new uncorrected ECC errors on GPU {found.gpu}",
                )  # fmt: skip

    def _loop(self) -> None:
        self.sample()
        while not self._stopping.wait(SAMPLE_SECONDS):
            self.sample()
        self.sample()
