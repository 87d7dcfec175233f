"""`athanor audit`: search and export the audit trail."""

import json
import os
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import choose_team
from athanor.cli.options import AsJson, connect
from athanor.cli.render import columns, console, note, print_json
from athanor.cli.times import TIME_HELP, moment, read_time

app = typer.Typer(rich_markup_mode=None)
Action = Annotated[str | None, typer.Option(help="Only this action and those below it: job includes job.submit.")]
Actor = Annotated[str | None, typer.Option(help="Only actions of this user, by username or id.")]
Team = Annotated[str | None, typer.Option(help="Only records about this team: a name that you see, or an id.")]
Target = Annotated[str | None, typer.Option(help="Only records about the object with this id, such as job_...")]
After = Annotated[str | None, typer.Option(help=f"Only records at or after this time: {TIME_HELP}.")]
Before = Annotated[str | None, typer.Option(help="Only records before this time.")]
PAGE = 200


@app.command("list")
@reports_errors
def list_records(
    action: Action = None,
    actor: Actor = None,
    team: Team = None,
    target: Target = None,
    after: After = None,
    before: Before = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Number of records.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List records, newest first. Administrators of a team see its records, auditors all."""
    client = connect()
    teams = _team_names(client)
    filters = _filters(teams, action, actor, team, target, after, before)
    found = list(islice(client.pages("/audit", **filters, limit=min(limit, PAGE)), limit))
    if as_json:
        print_json(found)
        return
    table = columns("number", "time", "actor", "action", "target", "team", "address")
    for row in found:
        table.add_row(
            str(row["seq"]), moment(row["time"]), escape(row["actor"]), escape(row["action"]), escape(_target(row)),
            escape(teams.get(row["team_id"], row["team_id"])), escape(row["address"]),
        )  # fmt: skip
    console.print(table if found else "No records.")


@app.command("export")
@reports_errors
def export(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file. Default: standard output.")] = None,
    action: Action = None,
    actor: Actor = None,
    team: Team = None,
    target: Target = None,
    after: After = None,
    before: Before = None,
) -> None:
    """Export records as JSON lines, oldest first, with an authenticated end for `manage.py verify_audit --file`.

    A file gets its name when the export is complete."""
    client = connect()
    filters = _filters(_team_names(client) if team else {}, action, actor, team, target, after, before)
    if output is None:
        _write(client, filters, sys.stdout.buffer)
        return
    partial = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            count = _write(client, filters, file)
        partial.replace(output)
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"--output {output}: {error.strerror}; choose another file") from error
    finally:
        partial.unlink(missing_ok=True)
    note(f"{count:,} records in {output}")


def _write(client: Client, filters: dict[str, Any], file: Any) -> int:
    """Write the lines of the export and return the number of records. Raises CliError if the end is missing."""
    count, last = 0, b""
    for line in client.lines("/audit:export", **filters):
        file.write(line)
        count, last = count + 1, line
    file.flush()
    if not last.startswith(b'{"end": ') or "end" not in json.loads(last):
        raise CliError(ExitCode.SERVER, "the export was cut off before its end: run it again")
    return count - 1


def _filters(
    teams: dict[str, str],
    action: str | None,
    actor: str | None,
    team: str | None,
    target: str | None,
    after: str | None,
    before: str | None,
) -> dict[str, Any]:
    return {
        "action": action,
        "actor": actor,
        "team": _team_id(teams, team),
        "target": target,
        "after": read_time("--after", after),
        "before": read_time("--before", before),
    }


def _team_id(teams: dict[str, str], asked: str | None) -> str | None:
    """Return the id of a team by its name. An id is taken as it is: auditors see no names of teams."""
    if asked is None or asked.startswith("team_"):
        return asked
    return choose_team([{"id": team_id, "name": name} for team_id, name in teams.items()], asked)


def _team_names(client: Client) -> dict[str, str]:
    return {team["id"]: team["name"] for team in client.pages("/teams")}


def _target(row: dict[str, Any]) -> str:
    """Return the kind and id of the object, and its name if the record has it."""
    facts = {**(row["before"] or {}), **(row["after"] or {})}
    name = facts.get("name") or facts.get("username")
    return f"{row['target_type']} {row['target_id']}" + (f" ({name})" if name else "")
