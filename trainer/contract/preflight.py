"""The report of a preflight: what was measured on the ranks of an attempt before its first step, and what is wrong."""

from typing import Literal

from pydantic import ValidationError

from trainer.contract.base import WireModel

Unit = Literal["flop_per_second", "bytes_per_second", "seconds"]
Severity = Literal["slow", "broken"]
MAX_FINDINGS = 50
MATRIX_PRODUCTS, PAIRS = "matrix products", "pairs, each way"
REPORT_LINE = "athanor-preflight-report: "
"""Before the report on the line of a node's output that carries it, as JSON."""


class Measure(WireModel):
    """One figure of all ranks, nodes or pairs that have it. `expected`: of such a device, where it is known."""

    name: str
    unit: Unit
    count: int
    median: float
    lowest: float
    lowest_at: str
    highest: float
    expected: float | None = None


class Collective(WireModel):
    """A collective of all ranks. `bus_bytes_per_second`: as nccl-tests defines it, comparable between numbers of
    ranks. `expected`: published for such a machine, where it is known."""

    name: str
    bytes: int
    seconds: float
    bus_bytes_per_second: float
    expected: float | None = None


class Finding(WireModel):
    """Something wrong. `nodes`: at fault; none if it is a link, or if it cannot be attributed. `because`: as text.
    `measure`: the name of the measure that shows it; empty in reports of earlier versions."""

    severity: Severity
    nodes: list[str]
    because: str
    measure: str = ""


class PreflightReport(WireModel):
    """`device`: its name. `skipped`: what was not measured, with the reason."""

    ranks: int
    nodes: int
    device: str
    seconds: float
    measures: list[Measure] = []
    collectives: list[Collective] = []
    findings: list[Finding] = []
    skipped: list[str] = []

    @property
    def result(self) -> Literal["ok", "slow", "broken"]:
        """Return the worst severity of the findings."""
        severities = {each.severity for each in self.findings}
        return "broken" if "broken" in severities else "slow" if severities else "ok"

    def on_node(self, node: str) -> "PreflightReport":
        """Return the report of a single node with the findings under this name of it."""
        findings = [each.model_copy(update={"nodes": [node] if each.nodes else []}) for each in self.findings]
        return self.model_copy(update={"findings": findings})

    def at_fault(self, severity: Severity) -> set[str]:
        """Return the nodes with a finding of this severity."""
        return {node for each in self.findings if each.severity == severity for node in each.nodes}


def report_line(report: PreflightReport) -> str:
    """Return the line of a node's output from which `find_report` reads the report."""
    return REPORT_LINE + report.model_dump_json()


def find_report(output: str) -> PreflightReport | None:
    """Return the last report in the output of a node, None without one that is valid."""
    lines = [line.partition(REPORT_LINE)[2] for line in output.splitlines() if REPORT_LINE in line]
    try:
        return PreflightReport.model_validate_json(lines[-1]) if lines else None
    except ValidationError:
        return None


def format_report(report: PreflightReport) -> list[str]:
    """Return the report as lines for people."""
    ranks = f"{report.ranks} rank{'' if report.ranks == 1 else 's'}"
    nodes = f"{report.nodes} node{'' if report.nodes == 1 else 's'}"
    lines = [f"{ranks} on {nodes}, {report.device}, measured in {report.seconds:.1f} s"]
    if report.measures:
        lines += ["", _row("measure", "median", "lowest", "at", "highest", "expected")]
    lines += [
        _row(
            each.name, format_value(each.median, each.unit), format_value(each.lowest, each.unit), each.lowest_at,
            format_value(each.highest, each.unit), format_value(each.expected, each.unit),
        )
        for each in report.measures
    ]  # fmt: skip
    if report.collectives:
        lines += ["", _row("collective", "size", "time", "", "bus bandwidth", "expected")]
    lines += [
        _row(
            each.name, format_bytes(each.bytes), format_value(each.seconds, "seconds"), "",
            format_value(each.bus_bytes_per_second, "bytes_per_second"),
            format_value(each.expected, "bytes_per_second"),
        )
        for each in report.collectives
    ]  # fmt: skip
    lines += ["", *(f"not measured: {each}" for each in report.skipped)] if report.skipped else []
    lines += ["", *(f"{each.severity}: {each.because}" for each in report.findings)]
    return lines if report.findings else [*lines, "nothing is slow or broken"]


def format_value(value: float | None, unit: Unit) -> str:
    """Return a value with three digits and its unit."""
    if value is None:
        return "-"
    if unit == "seconds":
        scale, name = next(((scale, name) for scale, name in ((1, "s"), (1e-3, "ms")) if value >= scale), (1e-6, "us"))
        return f"{value / scale:.3g} {name}"
    prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"))
    scale, name = next(((scale, name) for scale, name in prefixes if value >= scale), (1e3, "k"))
    return f"{value / scale:.3g} {name}{'FLOP/s' if unit == 'flop_per_second' else 'B/s'}"


def format_bytes(size: int) -> str:
    """Return a size in binary units, which all sizes of the preflight are multiples of."""
    return f"{size >> 20} MiB" if size >= 2**20 else f"{size >> 10} KiB" if size >= 2**10 else f"{size} B"


def _row(*cells: str) -> str:
    widths = (24, 12, 12, 28, 13, 0)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
