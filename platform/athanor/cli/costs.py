"""`athanor costs`: usage and cost, summed."""

import csv
import sys
from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.errors import reports_errors
from athanor.cli.options import AsJson, connect
from athanor.cli.plain import plain
from athanor.cli.render import columns, console, print_json
from athanor.cli.times import TIME_HELP, moment, read_time

MICRO, HOUR, KILOGRAM = 1_000_000, 3600, 1_000_000
FIGURES = (
    "slot_seconds", "cost", "charged", "fault_slot_seconds", "fault_cost", "saved_cost", "milligrams",
    "saved_milligrams",
)  # fmt: skip


@reports_errors
def costs(
    by: Annotated[
        str, typer.Option(help="Group by team, project, accelerator, pool, cluster, day; comma-separated.")
    ] = "team",
    after: Annotated[str | None, typer.Option(help=f"Start time: {TIME_HELP}. Default: 30 days ago.")] = None,
    before: Annotated[str | None, typer.Option(help="End time. Default: now.")] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, in slot-seconds and millionths of the currency.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show usage and cost of your teams; time lost to infrastructure faults is not charged."""
    found = connect().get("/costs", by=by, after=read_time("--after", after), before=read_time("--before", before))
    if as_json:
        print_json(found)
        return
    groups = by.split(",")
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*groups, "currency", *FIGURES])
        writer.writerows([plain(str(row[name])) for name in (*groups, "currency", *FIGURES)] for row in found["items"])
        return
    table = columns(*groups, "slot-hours", "lost to faults", "charged", "saved by waiting", "CO2")
    for row in found["items"]:
        table.add_row(
            *(escape(str(row[name])) for name in groups), f"{row['slot_seconds'] / HOUR:,.2f}",
            f"{row['fault_slot_seconds'] / HOUR:,.2f}", _money(row, "charged"), _money(row, "saved_cost"),
            f"{row['milligrams'] / KILOGRAM:,.3f} kg",
        )  # fmt: skip
    console.print(f"{moment(found['after'])} to {moment(found['before'])}")
    console.print(table if found["items"] else "No usage.")


def _money(row: Any, name: str) -> str:
    return f"{Decimal(row[name]) / MICRO:,.2f} {row['currency']}"
