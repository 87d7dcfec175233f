"""`athanor goodput`: what the slots of a job or of teams were held for, and what interrupted it."""

from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.options import AsJson, connect, find_job
from athanor.cli.render import ACTIVITIES, columns, console, duration, print_json
from athanor.cli.times import TIME_HELP, moment, read_time

MICRO = 1_000_000
NOT_KNOWN = "not known"
NOT_SHOWN = "(not shown)"  # of teams that are not yours


@reports_errors
def goodput(
    job: Annotated[
        str | None, typer.Argument(help="The job's name, or the beginning or end of its id.", metavar="JOB")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Statement of the jobs of this team, by name or id.")] = None,
    project: Annotated[str | None, typer.Option(help="Statement of the jobs of this project.")] = None,
    after: Annotated[
        str | None, typer.Option("--from", help=f"Start time of a statement: {TIME_HELP}. Default: 30 days ago.")
    ] = None,
    before: Annotated[str | None, typer.Option("--to", help="End time of a statement. Default: now.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the slots of a job, or of all jobs of your teams, were held for and what it cost.

    Times are multiplied by the slots. Of a JOB, they are from the launch to the end of each attempt. Below are the
    longest time between checkpoints, if the job has chosen it, and the interruptions, each with its cause and what it
    cost: lost work, time without progress, and the start-up that followed. Without a JOB, a statement over a time
    range: the usage that `athanor costs` shows, the interruptions by reason, and the jobs with the most time that was
    not productive.
    """
    client = connect()
    if job is not None:
        if any(value is not None for value in (team, project, after, before)):
            raise CliError(ExitCode.USAGE, "--team, --project, --from and --to are of a statement: leave JOB out")
        _show_job(client.get(f"/jobs/{find_job(client, job)}/goodput"), as_json)
        return
    found = client.get(
        "/goodput", after=read_time("--from", after), before=read_time("--to", before), team=team, project=project
    )
    if as_json:
        print_json(found)
        return
    console.print(f"{moment(found['after'])} to {moment(found['before'])}")
    for each in found["items"]:
        _show_statement(each)
    if not found["items"]:
        console.print("No usage.")


def _show_job(found: Any, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    if not found["attempts"]:
        console.print("No attempt has been launched.")
        return
    _show_sums(found)
    if chosen := found.get("checkpoint_interval"):  # an older server has none
        cost = chosen["stall_seconds"] + chosen["slowdown_seconds"]
        console.print(
            f"\ncheckpoints: at least every {duration(60 * chosen['minutes'])} (auto); a save costs {cost:.3g} s of "
            f"training, and a failure is expected every {duration(3600 * chosen['mean_hours_between_failures'])}"
        )
    if found["interruptions"]:
        console.print("\ninterruptions:")
        console.print(_interruptions(found))


def _show_statement(found: Any) -> None:
    _show_sums(found)
    if found["interruptions"]:
        console.print("\ninterruptions, by reason:")
        console.print(_causes(found))
    if found["jobs"]:
        console.print("\njobs with the most slot time that was not productive:")
        table = columns("job", "name", "slot time", "not productive", "cost of that")
        for row in found["jobs"]:
            table.add_row(
                row["id"] or NOT_SHOWN, escape(row["name"] or NOT_SHOWN), duration(row["slot_seconds"]),
                duration(row["unproductive_slot_seconds"]), _money(found, row["unproductive_cost"]),
            )  # fmt: skip
        console.print(table)


def _show_sums(found: Any) -> None:
    share = NOT_KNOWN if found["goodput"] is None else f"{found['goodput']:.1%}"
    divided = found["slot_seconds"] - found.get("uncounted", {}).get("slot_seconds", 0)
    console.print(
        f"goodput {share} of {duration(divided)} slot time; "
        f"{_money(found, found['charged'])} charged, {_money(found, found['refunded'])} refunded"
    )
    console.print(_categories(found))


def _categories(found: Any) -> Table:
    table = columns("activity", "slot time", "share", "cost")
    for row in found["categories"]:
        name = ACTIVITIES.get(row["activity"], row["activity"])
        table.add_row(name, duration(row["slot_seconds"]), f"{row['share']:.1%}", _money(found, row["cost"]))
        for phase in row["phases"]:
            table.add_row(
                f"  {escape(phase['phase'])}", duration(phase["slot_seconds"]), "", _money(found, phase["cost"])
            )
    if (rest := found.get("uncounted")) and any(rest.values()):
        table.add_row("not divided yet", duration(rest["slot_seconds"]), "", _money(found, rest["cost"]))
    table.add_row("total", duration(found["slot_seconds"]), "", _money(found, found["cost"]))
    return table


def _causes(found: Any) -> Table:
    table = columns(
        "reason",
        "blame",
        "attempts",
        "in place",
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
            reason["code"], reason["blame"], f"{row['attempts']:,}", f"{row['restarts']:,}", f"{row['steps_lost']:,}",
            *(duration(row[f"{part}_slot_seconds"]) for part in ("lost", "stalled", "startup")),
            _money(found, row["cost"]), _money(found, row["refunded"]),
        )  # fmt: skip
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
