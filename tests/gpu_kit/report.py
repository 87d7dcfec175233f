"""The report of the kit: `report.md` for `docs/benchmarks.md`, and `report.json` with every figure."""

import json
from pathlib import Path
from typing import Any

Results = dict[str, dict[str, Any] | None]


def write_report(results: Path, device: str, found: Results) -> str:
    """Write both files. Return the Markdown."""
    text = "\n".join(report_lines(device, found)) + "\n"
    (results / "report.md").write_text(text)
    (results / "report.json").write_text(json.dumps({"device": device, "parts": found}, indent=1) + "\n")
    return text


def report_lines(device: str, found: Results) -> list[str]:
    """Return the lines of the Markdown report."""
    states = [result["state"] if result is not None else "left for the next call" for result in found.values()]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = ["# GPU kit" if device == "cuda" else "# GPU kit, rehearsed on a CPU", "", f"Parts: {counts}.", ""]
    lines += _machine(_figures(found, "environment"))
    lines += _unfinished(found)
    lines += _speeds(found)
    lines += _ceilings(found)
    lines += _saves(_figures(found, "saves"))
    lines += _recoveries(found)
    lines += _checks(found)
    return lines + _cases(found)


def _figures(found: Results, name: str) -> dict[str, Any]:
    """Return the figures of a part that passed; empty otherwise."""
    result = found.get(name)
    return result.get("figures", {}) if result is not None else {}


def _machine(figures: dict[str, Any]) -> list[str]:
    if not figures:
        return []
    shown = {name: value for name, value in figures.items() if name != "packages"}
    shown |= {name: version for name, version in figures["packages"].items() if version is not None}
    return ["Machine: " + "; ".join(f"{name} {value}" for name, value in shown.items()) + ".", ""]


def _unfinished(found: Results) -> list[str]:
    lines = [
        f"- {name}: {result['state']}: {' / '.join(str(result.get('because')).splitlines()[-3:])}"
        for name, result in found.items() if result is not None and result["state"] != "passed"
    ]  # fmt: skip
    lines += [f"- {name}: left for the next call" for name, result in found.items() if result is None]
    return ["What did not pass:", "", *lines, ""] if lines else []


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows), ""]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _speeds(found: Results) -> list[str]:
    ceilings, machine = _figures(found, "matmul"), _figures(found, "environment")
    rows = []
    for name in found:
        kind, _, model = name.partition(" ")
        figures = _figures(found, name)
        if kind not in ("speed", "bare") or not figures:
            continue
        ours = _figures(found, f"speed {model}")
        precision = model.split()[-1]
        ceiling, peak = ceilings.get(f"best {precision}"), machine.get(f"peak {precision}")
        utilisation = figures.get("mfu_causal")
        of_ceiling = utilisation * peak / ceiling if utilisation and peak and ceiling else None
        seconds = figures["seconds"]
        split = ", ".join(
            f"{part} {value:.3f}" for part, value in seconds.items() if part != "step" and value is not None
        )  # fmt: skip
        rows.append([
            f"{model}, {ours.get('layers')} of {ours.get('layers of the preset')} layers",
            "Athanor" if kind == "speed" else "bare compiled loop",
            str(figures.get("micro_batch_sequences")), f"{figures['tokens_per_second']:,.0f}",
            _percent(utilisation), _percent(of_ceiling), _gibibytes(figures.get("memory_peak_bytes")),
            f"{seconds['step']:.3f}", split or "-",
        ])  # fmt: skip
    head = ["Model", "System", "Micro-batch", "Tokens/s", "MFU (causal)", "Of the products' ceiling", "Memory"]
    head += ["Step, s", "Of which, s"]
    return _table(head, rows)


def _ceilings(found: Results) -> list[str]:
    rows = [[f"product, {name}", f"{value / 1e12:,.1f}"] for name, value in _figures(found, "matmul").items()]
    for name, value in _figures(found, "attention speed").items():
        shown = value if isinstance(value, str) else f"{value / 1e12:,.1f}"
        rows.append([f"attention forward and backward, {name}", shown])
    lines = _table(["Kernel", "TFLOP/s"], rows)
    sums = [[name, f"{value / 1e12:.2f}"] for name, value in _figures(found, "gradient sums").items()]
    return lines + _table(["Sums of gradients, by", "TB/s"], sums)


def _saves(figures: dict[str, Any]) -> list[str]:
    if not figures:
        return []
    row = [
        f"{figures['bytes'] / 1e9:.2f} GB", f"{figures['seconds']:.2f} s",
        f"{max(figures['waits']):.3f} s", f"{figures['step before']:.3f} s", f"{figures['steps after a save']:.3f} s",
        _gibibytes(figures["memory before"]), _gibibytes(figures["memory after"]),
    ]  # fmt: skip
    head = ["Checkpoint", "Saved in", "Longest wait of the loop", "Step before", "Steps after", "Memory before",
            "Memory with saves"]  # fmt: skip
    return _table(head, [row])


def _recoveries(found: Results) -> list[str]:
    rows = []
    for name, figures in [*_figures(found, "recovery").items(), ("stopped", _figures(found, "hang"))]:
        if figures:
            seconds = ", ".join(f"{each:.1f}" for each in figures["seconds to the next step"])
            phases = ", ".join(f"{phase} {value:.1f}" for phase, value in figures["phases"][-1].items())
            rows.append([name, f"{figures['step']:.2f} s", f"{figures['waits for copies']:.3f} s", seconds, phases])
    head = ["Worker", "Step", "Of which it waits for a copy", "To the next step, s", "Of which, s"]
    lines = _table(head, rows)
    rows = [
        [name, f"{value / 1e9:.1f}"] for name, value in _figures(found, "host copies").items() if value > 1e6
    ]  # fmt: skip
    return lines + _table(["Memory of the host", "GB/s"], rows)


def _checks(found: Results) -> list[str]:
    rows = []
    for name in ("preflight", "GPU samples", "checksum", "repeated step"):
        rows += [[name, figure, json.dumps(value)] for figure, value in _figures(found, name).items()]
    return _table(["Check of the machine", "Figure", "Value"], rows)


def _cases(found: Results) -> list[str]:
    rows = []
    for name in found:
        figures = _figures(found, name)
        if name.startswith("case ") and figures:
            apart = figures["differences"]
            layers = max((value for series, value in apart.items() if series.startswith("layers/")), default=None)
            shown = [apart["train/loss"], apart["train/gradient_norm"], layers]
            rows.append([name.removeprefix("case "), *("-" if value is None else f"{value:.1e}" for value in shown)])
    head = ["Case, against the CPU", "Losses, largest difference", "Gradient norms", "Figures of layers"]
    lines = _table(head, rows)
    shares = [[name, f"{value:.2f}"] for name, value in _figures(found, "activations").items()]
    lines += _table(["Activations of a block", "Estimate, of what is stored"], shares)
    for name in ("attention", "ring"):
        figures = _figures(found, name)
        lines += _table([f"Kernels of {name}, against the CPU", "Largest difference"], [
            [way, value if isinstance(value, str) else f"{value:.1e}"] for way, value in figures.items()
        ])  # fmt: skip
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _gibibytes(count: float | None) -> str:
    return "-" if count is None else f"{count / 2**30:.1f} GiB"
