"""Preflight: a short program on the ranks of an attempt that measures devices and network before the first step.

Each measurement has its own limit, and none begins after `seconds`. A rank that never arrives at a collective ends the
preflight when `seconds` have passed, as a collective that times out.
"""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from math import isnan, nan
from pathlib import Path
from threading import Thread

import torch

from trainer.contract.encryption import Encryptor
from trainer.contract.preflight import (
    MATRIX_PRODUCTS,
    MAX_FINDINGS,
    PAIRS,
    Collective,
    Finding,
    Measure,
    PreflightReport,
    Severity,
    Unit,
)
from trainer.contract.run import EndClass
from trainer.contract.timeouts import STARTUP_TIMEOUT
from trainer.errors import TrainerError
from trainer.parallel.mesh import Mesh
from trainer.reporting.throughput import peak_of
from trainer.resilience.preflight import Place, differing, judge, judge_pairs, pair_rounds
from trainer.storage.base import Storage
from trainer.training.measurements import (
    bus_factor,
    collective_seconds,
    disk_rate,
    expected_bus_rate,
    expected_memory_rate,
    gather,
    highest,
    latency,
    matmul_rate,
    memory_rate,
    pair_rates,
    store_rates,
)

PREFLIGHT_SECONDS = 60.0
CPU = "cpu"
STORE_SECONDS = 10.0
COLLECTIVES = ("all_reduce", "all_gather", "all_to_all")
SIZES = {"cuda": (64 * 2**10, 4 * 2**20, 64 * 2**20), "cpu": (64 * 2**10, 2**20, 8 * 2**20)}
PAIR_BYTES = {"cuda": 32 * 2**20, "cpu": 2**20}
MAX_PLACES = 2048  # of pairs: each place waits for all rounds


@dataclass(frozen=True)
class StoreTarget:
    """Where one object may be written."""

    storage: Storage
    encryptor: Encryptor
    key: str


@dataclass
class Preflight:
    """One rank's part of a preflight; call `run` on all ranks.

    `nodes`: the names of the nodes, in the order of their ranks. `folder`: the work folder, of which the disk is
    measured. `store`: None without an object store.
    """

    mesh: Mesh
    nodes: list[str]
    folder: Path
    store: StoreTarget | None = None
    seconds: float = PREFLIGHT_SECONDS
    _skipped: list[str] = field(default_factory=list)
    _begin: float = 0.0

    def run(self) -> PreflightReport:
        """Measure, and return the report, the same on all ranks; a collective."""
        mesh = self.mesh
        self._begin = time.monotonic()
        if mesh.world_size > 1:
            mesh.set_timeout(timedelta(seconds=self.seconds))
        report = self._measure()
        if mesh.device.type == "cuda":
            torch.cuda.empty_cache()
        if mesh.world_size == 1:
            return report
        mesh.set_timeout(STARTUP_TIMEOUT)
        store = mesh.open_store("preflight/")
        if mesh.rank == 0:
            store.set("report", report.model_dump_json())
        store.wait(["report"], timedelta(seconds=self.seconds + STORE_SECONDS))
        return PreflightReport.model_validate_json(store.get("report"))

    def _measure(self) -> PreflightReport:
        mesh, places = self.mesh, self._places()
        rate, checksum = matmul_rate(mesh.device)
        rows = gather([rate, checksum, memory_rate(mesh.device), self._disk()], mesh)
        flops, checksums, memory, disk = (list(column) for column in zip(*rows, strict=True))
        first_of_node = range(0, mesh.world_size, self._per_node)
        collectives = self._collectives()
        found = [
            judge(MATRIX_PRODUCTS, "flop_per_second", places, flops, peak_of(mesh.device, "bf16"), self._worst),
            judge(
                "memory bandwidth", "bytes_per_second", places, memory, expected_memory_rate(mesh.device), self._worst
            ),
            judge(
                "disk of the work folder", "bytes_per_second", [places[at] for at in first_of_node],
                [disk[at] for at in first_of_node], None, worst="slow",
            ),
        ]  # fmt: skip
        findings = [*differing(places, checksums), *(each for _, own in found for each in own)]
        measures = [measure for measure, _ in found if measure is not None]
        if mesh.world_size > 1:
            network_measures, network_findings = self._network(places)
            measures += network_measures
            findings += network_findings
        measures += self._store_measures()
        findings.sort(key=lambda each: each.severity)  # broken ones first
        name = torch.cuda.get_device_name(mesh.device) if mesh.device.type == "cuda" else CPU
        return PreflightReport(
            ranks=mesh.world_size, nodes=len(self.nodes), device=name, seconds=time.monotonic() - self._begin,
            measures=measures, collectives=collectives, findings=findings[:MAX_FINDINGS], skipped=self._skipped,
        )  # fmt: skip

    @property
    def _worst(self) -> Severity:
        """Return what a rate can say at worst: CPUs and their network may be slow because other programs use them."""
        return "broken" if self.mesh.device.type == "cuda" else "slow"

    @property
    def _per_node(self) -> int:
        return self.mesh.world_size // len(self.nodes)

    def _places(self) -> list[Place]:
        return [Place(self.nodes[rank // self._per_node], rank) for rank in range(self.mesh.world_size)]

    def _disk(self) -> float:
        """Return the rate of this node's disk; NaN on the ranks that do not measure it, and where it fails."""
        if self.mesh.rank % self._per_node:
            return nan
        try:
            return disk_rate(self.folder)
        except OSError:
            return nan

    def _is_late(self, subject: str) -> bool:
        """Return whether the time is over, by the same clock on all ranks; a collective."""
        passed = highest(time.monotonic() - self._begin, self.mesh)
        if passed > self.seconds / 2:  # the rest is for what has begun
            self._skipped.append(f"{subject}: {passed:.0f} s had passed")
            return True
        return False

    def _collectives(self) -> list[Collective]:
        mesh, found = self.mesh, []
        if mesh.world_size == 1:
            return []
        for size in SIZES[mesh.device.type]:
            for name in COLLECTIVES:
                if self._is_late(f"{name} of {size} bytes"):
                    continue
                seconds = collective_seconds(name, size, mesh)
                bus = size / seconds * bus_factor(name, mesh.world_size)
                expected = expected_bus_rate(name, size, mesh, len(self.nodes))
                found.append(
                    Collective(name=name, bytes=size, seconds=seconds, bus_bytes_per_second=bus, expected=expected)
                )
        return found

    def _network(self, places: list[Place]) -> tuple[list[Measure], list[Finding]]:
        mesh, measures, findings = self.mesh, [], []
        if not self._is_late("latency"):
            middle, late = latency(mesh)
            rows = gather([middle, late], mesh)
            for at, name in enumerate(("latency of 8 bytes", "99th percentile of it")):
                measures.append(_measure_of(name, "seconds", [row[at] for row in rows], [str(each) for each in places]))
        speakers = list(range(0, mesh.world_size, self._per_node if len(self.nodes) > 1 else 1))
        rounds = pair_rounds(len(speakers))
        if len(speakers) > MAX_PLACES:
            self._skipped.append(f"pairs of {len(speakers)} nodes: at most {MAX_PLACES}")
        elif not self._is_late("pairs"):
            pairs = pair_rates(rounds, speakers, PAIR_BYTES[mesh.device.type], mesh)
            speaking = [places[rank] for rank in speakers]
            names = [f"{speaking[pair.first]} - {speaking[pair.second]}" for pair in pairs]
            measures.append(_measure_of(PAIRS, "bytes_per_second", [pair.rate for pair in pairs], names))
            findings += judge_pairs(speaking, pairs, self._worst)
        return measures, findings

    def _store_measures(self) -> list[Measure]:
        """Return the rates of the object store as the first rank sees it; none on the others."""
        if self.store is None or self.mesh.rank > 0:
            return []
        target, outcome = self.store, list[tuple[float, float] | str]()

        def measure() -> None:
            try:
                outcome.append(store_rates(target.storage, target.encryptor, target.key))
            except (TrainerError, OSError) as error:
                outcome.append(str(error))

        thread = Thread(target=measure, name="preflight-store", daemon=True)
        thread.start()
        thread.join(STORE_SECONDS)
        if not outcome or isinstance(outcome[0], str):
            reason = outcome[0] if outcome else f"it did not answer within {STORE_SECONDS:.0f} s"
            self._skipped.append(f"object store: {reason}")
            return []
        place = [str(self._places()[0])]
        return [
            _measure_of(f"object store, {way}", "bytes_per_second", [rate], place)
            for way, rate in zip(("write", "read"), outcome[0], strict=True)
        ]


def _measure_of(name: str, unit: Unit, values: list[float], places: list[str]) -> Measure:
    assert not any(map(isnan, values)), name
    ordered = sorted(values)
    lowest = ordered[0]
    return Measure(
        name=name, unit=unit, count=len(values), median=ordered[len(values) // 2], lowest=lowest,
        lowest_at=places[values.index(lowest)], highest=ordered[-1],
    )  # fmt: skip


def check_fitness(report: PreflightReport, node: str, *, has_spare: bool) -> None:
    """Raise TrainerError (NODE_UNFIT) on a node that the report names as broken, or as slow if it has GPUs and a spare
    node can take its place; without one, a slow node is better than none."""
    counts_slow = has_spare and report.device != CPU
    at_fault = report.at_fault("broken") | (report.at_fault("slow") if counts_slow else set())
    if node in at_fault:
        because = "; ".join(each.because for each in report.findings if node in each.nodes)
        raise TrainerError(EndClass.NODE_UNFIT, f"the preflight found node {node} unfit: {because}")
