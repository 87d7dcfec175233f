"""`athanor token` and `athanor service-account`: credentials of people and programs."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import reports_errors
from athanor.cli.lookup import TeamOption, find_row, find_team
from athanor.cli.options import AsJson, connect, read_duration, read_units
from athanor.cli.render import columns, console, note, print_json
from athanor.cli.teams import RoleOption, find_member
from athanor.cli.times import has_passed, moment

app = typer.Typer(rich_markup_mode=None)
accounts_app = typer.Typer(rich_markup_mode=None)
TokenName = Annotated[str, typer.Argument(help="Name, beginning (ath_...) or id of a token.", metavar="TOKEN")]
AccountName = Annotated[str, typer.Argument(help="Name of the service account: ci, or ci@TEAM.", metavar="NAME")]
DAY = 86_400


@app.command("list")
@reports_errors
def list_tokens(
    everything: Annotated[bool, typer.Option("--all", help="Also those that expired or were revoked.")] = False,
    as_json: AsJson = False,
) -> None:
    """List your tokens: with a token, those for its team; those of service accounts are not listed."""
    found = [row for row in connect().pages("/tokens") if everything or _is_valid(row)]
    if as_json:
        print_json(found)
        return
    table = columns("id", "name", "token", "team", "scopes", "state", "last used")
    for row in found:
        table.add_row(
            row["id"], escape(row["name"]), f"{row['prefix']}...", escape(row["team"]), ", ".join(row["scopes"]),
            _state(row), moment(row["last_used_at"]),
        )  # fmt: skip
    console.print(table)


@app.command("create")
@reports_errors
def create(
    name: Annotated[str, typer.Argument(help="Name by which to recognise the token.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="read, submit, artifacts, admin, or platform:PART of a platform role; repeatable. Default: the first "
            "four, as far as your token has them."
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Lifetime in whole days. Default: the longest.", metavar="30d")
    ] = None,
    service_account: Annotated[
        str | None, typer.Option(help="Create it for this service account of the team: ci, or ci@TEAM.")
    ] = None,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it, alone on standard output; it is not shown again.

    It gets at most the scopes and lifetime of the token that you use, and is revoked with that."""
    days = read_units("--expires", expires, DAY, "days", "30d")
    client = connect()
    body: dict[str, Any] = {"name": name}
    body |= {} if days is None else {"expires_in_days": days}
    body |= {"scopes": scope} if scope else {}
    if service_account is None:
        made = client.post("/tokens", body | ({} if team is None else {"team": team}))
    else:
        account = _account(client, find_team(client, team), service_account)
        made = client.post(f"/service-accounts/{account['id']}/tokens", body)
    _print_made(made, as_json=as_json)


@app.command("rotate")
@reports_errors
def rotate(
    token: TokenName,
    overlap: Annotated[
        str | None,
        typer.Option(help="How long the old token continues to work, at most 7d; 0 ends it now. Default: 1h."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replace one of your tokens by a successor with the same name and scopes, and print that."""
    seconds = read_duration("--overlap", overlap)
    client = connect()
    body = {} if seconds is None else {"overlap_seconds": seconds}
    _print_made(client.post(f"/tokens/{_token(client, token)['id']}:rotate", body), as_json=as_json)


@app.command("revoke")
@reports_errors
def revoke(token: TokenName) -> None:
    """Revoke one of your tokens immediately, and every token that it created."""
    client = connect()
    found = _token(client, token)
    client.delete(f"/tokens/{found['id']}")
    console.print(f"revoked {escape(found['name'])} ({found['prefix']}...)")


@app.command("revoke-all")
@reports_errors
def revoke_all(
    member: Annotated[
        str | None, typer.Option(help="Revoke the tokens of this member of the team; for administrators of it.")
    ] = None,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke the token that you use and every token that it created; with --member, all of a member's.

    `athanor login` gets you a new one. The page Tokens of the dashboard revokes all of yours."""
    client = connect()
    if member is None:
        found = client.post("/tokens:revoke-all")
    else:
        found = client.post(f"{find_member(client, find_team(client, team), member)}/tokens:revoke-all")
    if as_json:
        print_json(found)
    else:
        console.print(f"tokens revoked: {found['revoked']}")


@accounts_app.command("list")
@reports_errors
def list_accounts(team: TeamOption = None, as_json: AsJson = False) -> None:
    """List the service accounts of a team."""
    client = connect()
    found = _accounts(client, find_team(client, team))
    if as_json:
        print_json(found)
        return
    table = columns("id", "username", "created")
    for row in found:
        table.add_row(row["id"], escape(row["username"]), moment(row["created_at"]))
    console.print(table)


@accounts_app.command("create")
@reports_errors
def create_account(
    name: Annotated[str, typer.Argument(help="Name within the team; the username is NAME@TEAM.")],
    role: RoleOption = "member",
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Create an account for a program. It acts by tokens: `athanor token create --service-account NAME`."""
    client = connect()
    made = client.post(f"/teams/{find_team(client, team)}/service-accounts", {"name": name, "role": role})
    if as_json:
        print_json(made)
    else:
        console.print(f"{escape(made['username'])}  {made['id']}  {escape(role)}")


@accounts_app.command("delete")
@reports_errors
def delete_account(name: AccountName, team: TeamOption = None) -> None:
    """Retire a service account and revoke its tokens. Its jobs continue, and its name becomes free."""
    client = connect()
    found = _account(client, find_team(client, team), name)
    client.delete(f"/service-accounts/{found['id']}")
    console.print(f"retired {escape(found['username'])}")


def _print_made(made: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    until = f"until {moment(made['expires_at'])}" if made["expires_at"] else "without an end"
    note(f"{made['name']} ({made['id']}) for team {made['team']}, {until}: {', '.join(made['scopes'])}. The token:")
    print(made["token"])


def _token(client: Client, text: str) -> Any:
    """Return a valid token of the caller; `text` may be the token itself, of which the beginning is known."""
    valid = [row for row in client.pages("/tokens") if _is_valid(row)]
    sought = next((row["id"] for row in valid if text.startswith(row["prefix"])), text)
    return find_row(valid, sought, ["name"], "valid token", "athanor token list")


def _is_valid(row: dict[str, Any]) -> bool:
    return not row["revoked_at"] and not has_passed(row["expires_at"])


def _state(row: dict[str, Any]) -> str:
    if row["revoked_at"]:
        return f"revoked {moment(row['revoked_at'])}"
    if has_passed(row["expires_at"]):
        return f"expired {moment(row['expires_at'])}"
    return f"until {moment(row['expires_at'])}" if row["expires_at"] else "valid"


def _accounts(client: Client, team_id: str) -> list[dict[str, Any]]:
    return list(client.pages(f"/teams/{team_id}/service-accounts"))


def _account(client: Client, team_id: str, name: str) -> Any:
    """Return a service account of the team by `NAME`, `NAME@TEAM` or id."""
    rows = [{**row, "name": row["username"].rpartition("@")[0]} for row in _accounts(client, team_id)]
    return find_row(rows, name, ["name", "username"], "service account", "athanor service-account list")
