"""Find the rows that a user names: teams, members, tokens, webhooks and the like."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode

TEAM_HELP = "The team's name or id. Default: the team of your token."
TeamOption = Annotated[str | None, typer.Option("--team", help=TEAM_HELP)]
TeamArgument = Annotated[str | None, typer.Argument(help=TEAM_HELP, metavar="TEAM")]
MAX_LISTED = 5


def choose_team(teams: Iterable[Mapping[str, Any]], asked: str | None) -> str:
    """Return the id of the team with this name or id, or of the only one. Raises CliError for none or several."""
    known = list(teams)
    for team in known:
        if asked in (team["id"], team["name"]):
            return str(team["id"])
    if asked is None and len(known) == 1:
        return str(known[0]["id"])
    names = ", ".join(team["name"] for team in known) or "none"
    raise CliError(ExitCode.USAGE, f"--team {asked or 'is needed'}: your teams are {names}")


def find_team(client: Client, asked: str | None) -> str:
    """Return the id of a team that the caller sees, by default that of their token. Raises CliError for none."""
    teams = list(client.pages("/teams"))
    if asked is None and len(teams) > 1:  # a platform administrator sees all, and a token lists those of its own team
        asked = next((token["team"] for token in client.get("/tokens", limit=1)["items"]), None)
    return choose_team(teams, asked)


def find_versions(client: Client, name: str, team: str | None = None) -> list[Any]:
    """Return the versions of a data set, newest first. Raises CliError if no team has it, or several have."""
    rows = [row for row in client.pages("/datasets", team=team, name=name, versions="all") if row["name"] == name]
    teams = {row["team"]["id"] for row in rows}
    if len(teams) != 1:
        remedy = "name one of `athanor dataset list`" if not teams else "name its --team"
        raise CliError(ExitCode.NOT_FOUND, f"{len(teams)} data sets are called {name!r}; {remedy}")
    return sorted(rows, key=lambda row: -int(row["version"]))


def find_dataset(client: Client, reference: str, team: str | None = None) -> Any:
    """Return the version of `NAME` (the newest), `NAME@NUMBER` or `NAME@ALIAS`. Raises CliError if there is none."""
    name, at, which = reference.partition("@")
    rows = find_versions(client, name, team)
    found = [row for row in rows if not at or which in (str(row["version"]), *row["aliases"])]
    if not found:
        detail = f"data set {name!r} has no version {which!r}; `athanor dataset versions {name}` lists them"
        raise CliError(ExitCode.NOT_FOUND, detail)
    return found[0]


def find_row(rows: Iterable[dict[str, Any]], text: str, fields: Sequence[str], what: str, listing: str) -> Any:
    """Return the one row of which a field is `text`. Raises CliError naming the command that lists them.

    A row whose id it is comes before others of that name.
    """
    known = list(rows)
    found = [row for row in known if text == row.get("id")] or [
        row for row in known if text in [row[field] for field in fields]
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CliError(ExitCode.NOT_FOUND, f"no {what} {text!r}: `{listing}` shows them")
    more = f", and {len(found) - MAX_LISTED} more" if len(found) > MAX_LISTED else ""
    ids = ", ".join(row["id"] for row in found[:MAX_LISTED]) + more
    raise CliError(ExitCode.NOT_FOUND, f"{len(found)} {what}s are {text!r}, give an id: {ids}")
