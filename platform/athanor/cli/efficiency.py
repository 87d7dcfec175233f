"""`athanor efficiency`: how well a job used its slots, as `seff` of Slurm shows it, and what to change."""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.errors import reports_errors
from athanor.cli.options import AsJson, connect, find_job
from athanor.cli.render import columns, console, duration, print_json, size

MICRO, KILOGRAM = 1_000_000, 1000
NOT_KNOWN = "not known"
LOADS = {
    "gpu_utilisation": "GPU utilisation", "gpu_memory": "GPU memory in use", "cpu_utilisation": "CPU utilisation",
    "host_memory": "host memory in use", "gpu_power": "power of a GPU", "host_power": "power of a node's processors",
}  # fmt: skip


@reports_errors
def efficiency(
    job: Annotated[str, typer.Argument(help="The job's name, or the beginning or end of its id.", metavar="JOB")],
    as_json: AsJson = False,
) -> None:
    """Show how well a job used its slots: productive time, utilisation, memory, energy, and what to change.

    Times are multiplied by the slots, as `athanor goodput` counts them. Energy is measured where the nodes report
    power, and otherwise estimated from the watts of the pool, if an administrator has set them; what is not known is in
    no sum. For a job that has ended, changes are listed with which a job like it would cost less. A saving is an
    estimate, and the most that can be expected.
    """
    client = connect()
    found = client.get(f"/jobs/{find_job(client, job)}/efficiency")
    if as_json:
        print_json(found)
        return
    if found["goodput"] is None:
        console.print("No attempt has been launched.")
        return
    table = columns("", "")
    table.show_header = False
    for name, text in _rows(found):
        table.add_row(name, escape(text))
    console.print(table)
    for each in found["suggestions"]:
        console.print(f"\n{each['advice'].replace('_', ' ')}: saves at most {_money(found, each['saving'])} (estimate)")
        console.print(escape(each["message"]))
        console.print(f"change: {escape(json.dumps(each['changes']))}")


def _rows(found: Any) -> Iterator[tuple[str, str]]:
    yield "slot time", duration(found["slot_seconds"])
    yield "productive", f"{found['goodput']:.1%}, {duration(found['productive_slot_seconds'])}"
    yield "idle nodes", duration(found["idle_slot_seconds"])
    yield "cost", _money(found, found["cost"])
    yield "not productive", _money(found, found["unproductive_cost"])
    for name, title in LOADS.items():
        load = found["loads"][name]
        form = "{:.0f} W" if name.endswith("power") else "{:.0%}"
        if load is None:
            yield title, NOT_KNOWN
        else:
            mean, low, high = (form.format(load[key]) for key in ("mean", "p10", "highest"))
            yield title, f"mean {mean}, p10 {low}, highest {high} ({load['highest_at']})"
    yield "peak memory of a process", _memory(found["memory"])
    yield from energy_rows(found["energy"])


def energy_rows(energy: Any) -> Iterator[tuple[str, str]]:
    """Yield the rows of energy and carbon."""
    kwh, grams = energy["kwh"], energy["carbon_grams"]
    text = NOT_KNOWN if kwh is None else f"{kwh:,.3f} kWh, {energy['source']}"
    if kwh is not None and energy["unknown_slot_seconds"] > 0:
        text += f"; without {duration(energy['unknown_slot_seconds'])} slot time of which it is not known"
    yield "energy", text
    text = NOT_KNOWN if grams is None else f"{grams / KILOGRAM:,.3f} kg"
    if grams is not None and energy["carbon_slot_seconds"] < _slot_seconds(energy):
        text += f", of {duration(energy['carbon_slot_seconds'])} slot time"
    yield "CO2", text


def _slot_seconds(energy: Any) -> float:
    parts = ("measured", "estimated", "unknown")
    return sum(float(energy[f"{part}_slot_seconds"]) for part in parts)


def _memory(memory: Any) -> str:
    if memory is None:
        return NOT_KNOWN
    text = f"{size(memory['peak_bytes'])} (rank {memory['peak_rank']})"
    if memory["available_bytes"] is None:
        return f"{text}, headroom {NOT_KNOWN}"
    headroom = memory["headroom_bytes"]
    beyond = f"headroom {size(headroom)}" if headroom >= 0 else f"{size(-headroom)} above it"
    return f"{text} of {size(memory['available_bytes'])}, {beyond}"


def _money(found: Any, micro: int) -> str:
    return f"{Decimal(micro) / MICRO:,.2f} {found['currency']}"
