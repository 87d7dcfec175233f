"""`athanor usage-report`: what each team used in a month."""

from collections import Counter
from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.efficiency import energy_rows
from athanor.cli.errors import reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.render import columns, console, print_json

MICRO, HOUR = 1_000_000, 3600


@reports_errors
def usage_report(
    month: Annotated[str | None, typer.Option(help="The month in UTC, YYYY-MM. Default: the current one.")] = None,
    team: Annotated[str | None, typer.Option(help="Only this team, by name or id.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what each team used in a month: productive and other slot time, faults, energy and carbon.

    Covers your teams; for platform administrators and auditors, all teams. Productive time, the other activities and
    what is not divided yet sum to the total. What faults of the infrastructure lost is in the total, but not charged.
    """
    found = connect().get("/usage-report", month=month, team=team)
    if as_json:
        print_json(found)
        return
    console.print(f"{found['month']} (UTC)")
    if not found["items"]:
        console.print("No usage.")
    for row in found["items"]:
        console.print()
        console.print(_table(row))
        for name, text in energy_rows(row["energy"]):
            console.print(f"{name}: {text}", highlight=False)


def _table(row: Any) -> Any:
    others: dict[str, Counter[str]] = {}
    for each in row["unproductive"]:
        amount = others.setdefault(each["activity"].replace("_", " "), Counter())
        amount.update(slot_seconds=each["slot_seconds"], cost=each["cost"])
    lost = {"slot_seconds": row["fault_slot_seconds"], "cost": row["fault_cost"]}
    table = columns(escape(row["team"]), "slot-hours", "cost")
    for name, amount in {
        "productive": row["productive"],
        **others,
        "not divided yet": row["uncounted"],
        "total": row,
        "of it lost to faults": lost,
        "charged": {"slot_seconds": row["slot_seconds"] - lost["slot_seconds"], "cost": row["charged"]},
    }.items():
        money = f"{Decimal(amount['cost']) / MICRO:,.2f} {row['currency']}"
        table.add_row(name, f"{amount['slot_seconds'] / HOUR:,.2f}", money)
    return table
