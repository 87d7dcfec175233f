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

NOT_SHOWN = "(not shown)"  # of teams that are not yours, or not stored by job
MICRO, HOUR, KILOGRAM = 1_000_000, 3600, 1_000_000
FIGURES = (
    "slot_seconds", "cost", "charged", "fault_slot_seconds", "fault_cost", "saved_cost", "milligrams",
    "saved_milligrams",
)  # fmt: skip


@reports_errors
def costs(
    by: Annotated[
        str, typer.Option(help="Group by team, project, person, job, accelerator, pool, cluster, day; comma-separated.")
    ] = "team",
    after: Annotated[str | None, typer.Option(help=f"Start time: {TIME_HELP}. Default: 30 days ago.")] = None,
    before: Annotated[str | None, typer.Option(help="End time. Default: now.")] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV, in slot-seconds and millionths of the currency.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show usage and cost of your teams; time lost to infrastructure faults is not charged.

    By person or job the 500 most expensive are shown, and the sums of the others.
    """
    found = connect().get("/costs", by=by, after=read_time("--after", after), before=read_time("--before", before))
    if as_json:
        print_json(found)
        return
    groups = [name for group in by.split(",") for name in (["job", "job_name"] if group == "job" else [group])]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        names = [*groups, "currency", *FIGURES]
        writer.writerow(names)
        rows = [*found["items"], *({**row, groups[0]: "rest"} for row in found.get("rest", []))]
        writer.writerows([plain(_csv_value(row.get(name))) for name in names] for row in rows)
        return
    headings = [name.replace("_", " ") for name in groups]
    table = columns(*headings, "slot-hours", "lost to faults", "charged", "saved by waiting", "CO2")
    for row in found["items"]:
        keys = [escape(str(NOT_SHOWN if row[name] is None else row[name])) for name in groups]
        table.add_row(
            *keys, f"{row['slot_seconds'] / HOUR:,.2f}",
            f"{row['fault_slot_seconds'] / HOUR:,.2f}", _money(row, "charged"), _money(row, "saved_cost"),
            _kilograms(row),
        )  # fmt: skip
    console.print(f"{moment(found['after'])} to {moment(found['before'])}")
    console.print(table if found["items"] else "No usage.")
    for row in found.get("rest", []):
        hours = f"{row['slot_seconds'] / HOUR:,.2f} slot-hours"
        console.print(f"and {row['groups']:,} more: {hours}, {_money(row, 'charged')} charged")


def _csv_value(value: Any) -> str:
    return "" if value is None else str(value)


def _kilograms(row: Any) -> str:
    """Return the counted CO2. Of pools without watts per slot or carbon intensity none is counted."""
    return f"{row['milligrams'] / KILOGRAM:,.3f} kg" if row["milligrams"] else "not known"


def _money(row: Any, name: str) -> str:
    return f"{Decimal(row[name]) / MICRO:,.2f} {row['currency']}"
