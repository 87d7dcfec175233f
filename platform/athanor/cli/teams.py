"""`athanor team`, and `athanor invitation`: teams, their members, and who is invited."""

from typing import Annotated, Any

import typer
from rich.markup import escape

from athanor.cli.client import Client
from athanor.cli.errors import CliError, ExitCode, reports_errors
from athanor.cli.lookup import TeamArgument, TeamOption, find_row, find_team
from athanor.cli.options import AsJson, connect, read_units
from athanor.cli.render import columns, console, note, print_json
from athanor.cli.times import has_passed, moment

app = typer.Typer(rich_markup_mode=None)
invitations_app = typer.Typer(rich_markup_mode=None)
ROLES = "viewer reads and downloads, member also submits, admin also manages members, secrets and webhooks."
Username = Annotated[str, typer.Argument(help="Username, as in `athanor team members`.", metavar="USERNAME")]
RoleOption = Annotated[str, typer.Option("--role", help=ROLES)]
MaxRunningJobs = Annotated[
    str | None, typer.Option("--max-running-jobs", help="Jobs that may run at the same time, or none.", metavar="N")
]
MaxSlots = Annotated[
    str | None, typer.Option("--max-slots", help="Slots that its jobs may hold at the same time, or none.", metavar="N")
]
OfferTeam = Annotated[str, typer.Argument(help="Name of the team that invites you, or the id.", metavar="TEAM")]
HOUR = 3600
NONE = "none"


@app.command("list")
@reports_errors
def list_teams(as_json: AsJson = False) -> None:
    """List your teams; for platform administrators, all teams."""
    found = list(connect().pages("/teams"))
    if as_json:
        print_json(found)
        return
    table = columns("id", "name", "running jobs, at most", "slots, at most", "created")
    for team in found:
        limits = (_limit_text(team["max_running_jobs"]), _limit_text(team["max_slots"]))
        table.add_row(team["id"], escape(team["name"]), *limits, moment(team["created_at"]))
    console.print(table)


@app.command("create")
@reports_errors
def create(
    name: Annotated[str, typer.Argument(help="Unique on the platform: letters, digits, - and _.")],
    max_running_jobs: MaxRunningJobs = None,
    max_slots: MaxSlots = None,
    as_json: AsJson = False,
) -> None:
    """Create a team with you as its administrator, for platform administrators.

    `athanor delete team NAME` deletes one."""
    client = connect()
    made = client.post("/teams", {"name": name, **_limits(max_running_jobs, max_slots)})
    if as_json:
        print_json(made)
        return
    _print_team(made)
    note(
        f"Your token is for another team. To work in {made['name']}: athanor login --username YOU --team {made['name']}"
    )


@app.command("show")
@reports_errors
def show(team: TeamArgument = None, as_json: AsJson = False) -> None:
    """Show a team and its limits."""
    client = connect()
    found = client.get(f"/teams/{find_team(client, team)}")
    if as_json:
        print_json(found)
    else:
        _print_team(found)


@app.command("update")
@reports_errors
def update(
    team: Annotated[str, typer.Argument(help="The team's name or id.", metavar="TEAM")],
    max_running_jobs: MaxRunningJobs = None,
    max_slots: MaxSlots = None,
    as_json: AsJson = False,
) -> None:
    """Change the limits of a team, for platform administrators. Running jobs are not stopped."""
    limits = _limits(max_running_jobs, max_slots)
    if not limits:
        raise CliError(ExitCode.USAGE, "nothing to change: give --max-running-jobs or --max-slots")
    client = connect()
    changed = client.patch(f"/teams/{find_team(client, team)}", limits)
    if as_json:
        print_json(changed)
    else:
        _print_team(changed)


@app.command("data-policy")
@reports_errors
def data_policy(
    team: TeamArgument = None,
    requires_data_report: Annotated[
        bool | None,
        typer.Option(
            "--require-report/--no-require-report",
            help="Whether to refuse training on data without a data report, or with critical findings in the newest "
            "one. Without it, the present setting is shown.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show or set what a team requires of data that jobs train on. Setting it is for administrators of the team."""
    client = connect()
    path = f"/teams/{find_team(client, team)}"
    if requires_data_report is None:
        found = client.get(path)
    else:
        found = client.put(f"{path}/data-policy", {"requires_data_report": requires_data_report})
    if as_json:
        print_json({"requires_data_report": found["requires_data_report"]})
        return
    is_required = found["requires_data_report"]
    console.print(
        escape(f"{found['name']}: a data report without critical findings is ")
        + ("required to train on a data set" if is_required else "not required")
    )


@app.command("members")
@reports_errors
def members(team: TeamArgument = None, as_json: AsJson = False) -> None:
    """List the members of a team, people and service accounts, with their roles."""
    client = connect()
    found = _members(client, find_team(client, team))
    if as_json:
        print_json(found)
        return
    table = columns("username", "role", "kind", "email")
    for row in found:
        kind = "service account" if row["is_service_account"] else "person"
        table.add_row(escape(row["username"]), row["role"], kind, escape(row["email"]))
    console.print(table)


@app.command("invite")
@reports_errors
def invite(
    username: Annotated[
        str | None,
        typer.Argument(help="Offer membership to this user. Without it, a link for one person is created."),
    ] = None,
    role: RoleOption = "member",
    note_text: Annotated[str | None, typer.Option("--note", help="Whom the link is for; shown to admins.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long the link works, in whole hours or days. Default: 3d.", metavar="3d")
    ] = None,
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Invite somebody to a team. Without USERNAME the link is printed; it is not shown again."""
    if username is not None and (note_text is not None or expires is not None):
        raise CliError(ExitCode.USAGE, f"--note and --expires are for a link: leave them out, or USERNAME {username!r}")
    hours = read_units("--expires", expires, HOUR, "hours", "12h or 3d")
    client = connect()
    team_id = find_team(client, team)
    if username is not None:
        made = client.post(f"/teams/{team_id}/members", {"username": username, "role": role})
        if as_json:
            print_json(made)
        else:
            answer = "`athanor invitation accept TEAM`, or on the page Team"
            console.print(
                f"{escape(username)} is invited as {made['role']} until {moment(made['expires_at'])}, and answers with "
                f"{answer}",
                soft_wrap=True,
            )
        return
    body: dict[str, Any] = {"role": role}
    body |= {} if hours is None else {"expires_in_hours": hours}
    made = client.post(f"/teams/{team_id}/invitations", body | ({} if note_text is None else {"note": note_text}))
    if as_json:
        print_json(made)
        return
    note(f"This link works once, until {moment(made['expires_at'])}, for the role {made['role']}:")
    print(made["url"])


@app.command("invitations")
@reports_errors
def invitations(team: TeamArgument = None, as_json: AsJson = False) -> None:
    """List the invitations of a team, newest first, with those that were answered, revoked or have expired."""
    client = connect()
    found = list(client.pages(f"/teams/{find_team(client, team)}/invitations"))
    if as_json:
        print_json(found)
        return
    table = columns("id", "for", "role", "state", "created by", "expires")
    for row in found:
        invited = row["username"] or row["note"] or "link"
        table.add_row(
            row["id"], escape(invited), row["role"], escape(_state(row)), escape(row["created_by"]),
            moment(row["expires_at"]),
        )  # fmt: skip
    console.print(table)


@app.command("revoke-invitation")
@reports_errors
def revoke_invitation(
    invitation: Annotated[str, typer.Argument(help="Id, as in `athanor team invitations`.", metavar="INVITATION")],
) -> None:
    """Revoke an invitation that was not answered."""
    connect().delete(f"/invitations/{invitation}")
    console.print(f"revoked {escape(invitation)}")


@app.command("set-role")
@reports_errors
def set_role(
    username: Username,
    role: Annotated[str, typer.Argument(help=ROLES, metavar="ROLE")],
    team: TeamOption = None,
    as_json: AsJson = False,
) -> None:
    """Change the role of a member. A team's last administrator keeps that role."""
    client = connect()
    changed = client.patch(find_member(client, find_team(client, team), username), {"role": role})
    if as_json:
        print_json(changed)
    else:
        console.print(f"{escape(changed['username'])} is {changed['role']}")


@app.command("remove-member")
@reports_errors
def remove_member(username: Username, team: TeamOption = None) -> None:
    """Remove a member and revoke their tokens for the team. A service account is retired."""
    client = connect()
    client.delete(find_member(client, find_team(client, team), username))
    console.print(f"removed {escape(username)}")


@invitations_app.command("list")
@reports_errors
def list_offers(as_json: AsJson = False) -> None:
    """List the open invitations that name you."""
    found = list(connect().pages("/invitations"))
    if as_json:
        print_json(found)
        return
    table = columns("id", "team", "role", "from", "expires")
    for row in found:
        table.add_row(row["id"], escape(row["team"]), row["role"], escape(row["created_by"]), moment(row["expires_at"]))
    console.print(table if found else "No invitations.")


@invitations_app.command("accept")
@reports_errors
def accept(team: OfferTeam, as_json: AsJson = False) -> None:
    """Accept an invitation that names you; a link is opened in a browser."""
    client = connect()
    offer = _offer(client, team)
    joined = client.post(f"/invitations/{offer['id']}:accept")
    if as_json:
        print_json(joined)
        return
    console.print(f"you are {joined['role']} of {escape(offer['team'])}")
    _note_login(client, offer["team"])


@invitations_app.command("decline")
@reports_errors
def decline(team: OfferTeam) -> None:
    """Decline an invitation that names you."""
    client = connect()
    offer = _offer(client, team)
    client.post(f"/invitations/{offer['id']}:decline")
    console.print(f"declined {escape(offer['team'])}")


def find_member(client: Client, team_id: str, username: str) -> str:
    """Return the API path of a member of a team."""
    row = find_row(_members(client, team_id), username, ["username", "user_id"], "member", "athanor team members")
    return f"/teams/{team_id}/members/{row['user_id']}"


def _members(client: Client, team_id: str) -> list[dict[str, Any]]:
    return list(client.pages(f"/teams/{team_id}/members"))


def _offer(client: Client, team: str) -> Any:
    return find_row(client.pages("/invitations"), team, ["team"], "open invitation of", "athanor invitation list")


def _state(row: dict[str, Any]) -> str:
    if row["accepted_at"]:
        return f"accepted by {row['accepted_by'] or 'somebody whose account is gone'}"
    for state in ("revoked", "declined"):
        if row[f"{state}_at"]:
            return f"{state} {moment(row[f'{state}_at'])}"
    return "expired" if has_passed(row["expires_at"]) else "open"


def _limits(max_running_jobs: str | None, max_slots: str | None) -> dict[str, int | None]:
    given = {"max_running_jobs": max_running_jobs, "max_slots": max_slots}
    return {name: _limit(name, text) for name, text in given.items() if text is not None}


def _limit(name: str, text: str) -> int | None:
    if text == NONE:
        return None
    if not (text.isascii() and text.isdigit()):
        raise CliError(ExitCode.USAGE, f"--{name.replace('_', '-')} {text!r}: give a whole number, or none")
    return int(text)


def _limit_text(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def _note_login(client: Client, team: str) -> None:
    note(f"Tokens are for one team. For one of {team}: athanor login {client.url} --username YOU --team {team}")


def _print_team(team: dict[str, Any]) -> None:
    console.print(f"[bold]{escape(team['name'])}[/bold]  {team['id']}  created {moment(team['created_at'])}")
    limits = (_limit_text(team["max_running_jobs"]), _limit_text(team["max_slots"]))
    console.print(f"limits: running jobs {limits[0]}, slots {limits[1]}")
