"""secret list, set, destinations, delete. Changing them needs an administrator of the team."""

import sys
from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import TeamOption, find_row, find_team
from athanor.cli.options import AsJson, connect
from athanor.cli.render import columns, console, print_json

app = typer.Typer(rich_markup_mode=None)
SecretName = Annotated[str, typer.Argument(help="Such as hf-token or mlflow-tracking-token.")]
ORIGIN = "scheme://host[:port] of a server that it may be sent to, such as https://mlflow.example.org."


@app.command("list")
@reports_errors
def list_secrets(team: TeamOption = None, as_json: AsJson = False) -> None:
    """List the secrets of a team and where they may be sent. Values are never shown."""
    client = connect()
    found = _secrets(client, find_team(client, team))
    if as_json:
        print_json(found)
        return
    table = columns("id", "name", "destinations", "set by")
    for secret in found:
        places = ", ".join(secret["destinations"]) or "none"
        table.add_row(secret["id"], escape(secret["name"]), escape(places), escape(secret["updated_by"] or ""))
    console.print(table)


@app.command("set")
@reports_errors
def set_secret(
    name: SecretName,
    destination: Annotated[list[str] | None, typer.Option(help=ORIGIN)] = None,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Set or replace a secret; the value is read from standard input or a prompt, never from the command line."""
    client = connect()
    team_id = find_team(client, team)
    value = typer.prompt("Value", hide_input=True) if sys.stdin.isatty() else sys.stdin.read().rstrip("\n")
    body: dict[str, Any] = {"name": name, "value": value}
    if destination:
        body["destinations"] = destination
    _print(client.post(f"/teams/{team_id}/secrets", body), as_json=as_json)


@app.command("destinations")
@reports_errors
def set_destinations(
    name: SecretName,
    origin: Annotated[list[str] | None, typer.Argument(help=ORIGIN, metavar="ORIGIN...")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove these instead of adding them.")] = False,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the servers that a secret may be sent to; with ORIGIN, add or remove some."""
    client = connect()
    secret = _secret(client, find_team(client, team), name)
    if origin:
        known = secret["destinations"]
        changed = [each for each in known if each not in origin] if remove else [*known, *origin]
        if remove and len(changed) == len(known):
            raise CliError(ExitCode.USAGE, f"{', '.join(origin)}: no destination of {name}; it has {known or 'none'}")
        secret = client.patch(f"/secrets/{secret['id']}", {"destinations": changed})
    _print(secret, as_json=as_json)


@app.command("delete")
@reports_errors
def delete(name: SecretName, team: TeamOption = None) -> None:
    """Delete a secret. Running jobs use the value they started with; later ones start without it."""
    client = connect()
    client.delete(f"/secrets/{_secret(client, find_team(client, team), name)['id']}")
    console.print(f"deleted {escape(name)}")


def _print(secret: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(secret)
        return
    places = ", ".join(secret["destinations"]) or "no server"
    console.print(f"{escape(secret['name'])} is set; it may be sent to {escape(places)}")


def _secrets(client: Client, team_id: str) -> list[dict[str, Any]]:
    return list(client.pages(f"/teams/{team_id}/secrets"))


def _secret(client: Client, team_id: str, name: str) -> Any:
    return find_row(_secrets(client, team_id), name, ["name"], "secret", "athanor secret list")
