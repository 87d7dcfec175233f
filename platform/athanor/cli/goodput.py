"""`athanor goodput`: what a job's slots were held for, and what interrupted it."""

from decimal import Decimal
from typing import Any

from rich.markup import escape
from rich.table import Table

from athanor.cli.errors import reports_errors
from athanor.cli.options import AsJson, JobId, connect, find_job
from athanor.cli.render import ACTIVITIES, columns, console, duration, print_json
from athanor.cli.times import moment

MICRO = 1_000_000
NOT_KNOWN = "not known"


@reports_errors
def goodput(job: JobId, as_json: AsJson = False) -> None:
    """Show what a job's slots were held for and what it cost, from the launch to the end of each attempt.

    Times are multiplied by the slots. Below are the longest time between checkpoints, if the job has chosen it, and the
    interruptions, each with its cause and what it cost: lost work, time without progress, and the start-up that
    followed.
    """
    client = connect()
    found = client.get(f"/jobs/{find_job(client, job)}/goodput")
    if as_json:
        print_json(found)
        return
    if not found["attempts"]:
        console.print("No attempt has been launched.")
        return
    console.print(
        f"goodput {found['goodput']:.1%} of {duration(found['slot_seconds'])} slot time; "
        f"{_money(found, found['charged'])} charged, {_money(found, found['refunded'])} refunded"
    )
    console.print(_categories(found))
    if chosen := found.get("checkpoint_interval"):  # an older server has none
        cost = chosen["stall_seconds"] + chosen["slowdown_seconds"]
        console.print(
            f"\ncheckpoints: at least every {duration(60 * chosen['minutes'])} (auto); a save costs {cost:.3g} s of "
            f"training, and a failure is expected every {duration(3600 * chosen['mean_hours_between_failures'])}"
        )
    if found["interruptions"]:
        console.print("\ninterruptions:")
        console.print(_interruptions(found))


def _categories(found: Any) -> Table:
    table = columns("activity", "slot time", "share", "cost")
    for row in found["categories"]:
        name = ACTIVITIES.get(row["activity"], row["activity"])
        table.add_row(name, duration(row["slot_seconds"]), f"{row['share']:.1%}", _money(found, row["cost"]))
        for phase in row["phases"]:
            table.add_row(
                f"  {escape(phase['phase'])}", duration(phase["slot_seconds"]), "", _money(found, phase["cost"])
            )
    table.add_row("total", duration(found["slot_seconds"]), "", _money(found, found["cost"]))
    return table


def _interruptions(found: Any) -> Table:
    table = columns(
        "time",
        "attempt",
        "reason",
        "blame",
        "node",
        "steps repeated",
        "lost",
        "no progress",
        "start-up",
        "cost",
        "refunded",
    )
    for row in found["interruptions"]:
        reason = row["reason"] or {"code": NOT_KNOWN, "blame": NOT_KNOWN}
        table.add_row(
            moment(row["time"]), f"{row['attempt']}{', in place' if row['in_place'] else ''}", reason["code"],
            reason["blame"], escape(row["node"] or NOT_KNOWN),
            NOT_KNOWN if row["steps_lost"] is None else f"{row['steps_lost']:,}",
            *(duration(row[f"{part}_slot_seconds"]) for part in ("lost", "stalled", "startup")),
            _money(found, row["cost"]), _money(found, row["refunded"]),
        )  # fmt: skip
    return table


def _money(found: Any, micro: int) -> str:
    return f"{Decimal(micro) / MICRO:,.2f} {found['currency']}"
