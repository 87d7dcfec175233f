"""signing-key list, show, rotate, revoke. Changing them needs an administrator of the team."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import TeamOption, find_row, find_team
from athanor.cli.options import AsJson, connect
from athanor.cli.plain import plain
from athanor.cli.render import columns, console, print_json
from athanor.cli.times import moment

app = typer.Typer(rich_markup_mode=None)
LISTING = "athanor signing-key list"
ROTATE = "athanor signing-key rotate"


@app.command("list")
@reports_errors
def list_keys(
    team: TeamOption = None,
    revoked: Annotated[
        bool, typer.Option("--revoked", help="Print the revoked keys only, for `athanor model verify --revoked`.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the keys that sign the models of a team, newest first."""
    client = connect()
    found = _keys(client, find_team(client, team))
    if revoked:
        found = [key for key in found if key["state"] == "revoked"]
    if as_json:
        print_json(found)
        return
    if revoked:
        for key in found:
            reason = " ".join(key["revocation_reason"].split())
            print(plain(f"{key['fingerprint']} {reason} ({key['revoked_at']})"))
        return
    table = columns("id", "state", "fingerprint", "created", "reason")
    for key in found:
        table.add_row(
            key["id"], key["state"], key["fingerprint"], moment(key["created_at"]), escape(key["revocation_reason"])
        )
    console.print(table if found else "No signing keys. The first signature creates one; so does: " + ROTATE)


@app.command("show")
@reports_errors
def show(
    key: Annotated[
        str | None, typer.Argument(help="Id or fingerprint of a key. Default: the active one.", metavar="[KEY]")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Print only the public key, as PEM.")] = False,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a signing key; with --public, print the PEM that verifies its signatures."""
    client = connect()
    found = _keys(client, find_team(client, team))
    chosen = _active(found) if key is None else find_row(found, key, ["fingerprint"], "signing key", LISTING)
    if as_json:
        print_json(chosen)
        return
    if not public:
        line = f"{chosen['id']}: {chosen['state']}, created {moment(chosen['created_at'])}"
        console.print(line, soft_wrap=True, markup=False)
        if chosen["state"] == "revoked":
            by = chosen["revoked_by"] or "a former user"
            line = f"revoked {moment(chosen['revoked_at'])} by {by}: {chosen['revocation_reason']}"
            console.print(line, soft_wrap=True, markup=False)
        print(f"fingerprint {chosen['fingerprint']}")
    print(chosen["public_key"], end="")


@app.command("rotate")
@reports_errors
def rotate(team: TeamOption = None, as_json: AsJson = False) -> None:
    """Create a key that signs from now on. Signatures by the earlier one stay valid."""
    client = connect()
    made = client.post(f"/teams/{find_team(client, team)}/signing-keys:rotate")
    if as_json:
        print_json(made)
    else:
        console.print(f"{made['id']} signs from now on: fingerprint {made['fingerprint']}", soft_wrap=True)


@app.command("revoke")
@reports_errors
def revoke(
    key: Annotated[str, typer.Argument(help="Id or fingerprint of the key.", metavar="KEY")],
    reason: Annotated[str, typer.Option(help="Why, for others to read.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a signing key: its signatures are refused from now on, also earlier ones. This cannot be undone."""
    client = connect()
    found = find_row(_keys(client, find_team(client, team)), key, ["fingerprint"], "signing key", LISTING)
    if not yes and not as_json:
        typer.confirm(f"This cannot be undone. Revoke {found['id']} ({found['fingerprint']})?", abort=True)
    made = client.post(f"/signing-keys/{found['id']}:revoke", {"reason": reason})
    if as_json:
        print_json(made)
        return
    console.print(f"{made['id']} is revoked: {made['revocation_reason']}", soft_wrap=True, markup=False)
    console.print("Give the new list to those who verify: athanor signing-key list --revoked > revoked.txt")


def _keys(client: Client, team_id: str) -> list[dict[str, Any]]:
    return list(client.pages(f"/teams/{team_id}/signing-keys"))


def _active(found: list[dict[str, Any]]) -> dict[str, Any]:
    active = next((key for key in found if key["state"] == "active"), None)
    if active is None:
        raise CliError(ExitCode.NOT_FOUND, f"the team has no active signing key; an administrator makes one: {ROTATE}")
    return active
